// SPDX-License-Identifier: Apache-2.0
//! Kind-specific rules as one table.

use crate::names::NameRule;

/// The rules of one kind that differ between kinds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strategy {
    /// A PUT without `resourceVersion` replaces any version.
    pub(crate) unconditional_update: bool,
    /// A PUT creates an object that does not exist.
    pub(crate) create_on_update: bool,
    /// `metadata.generation` counts changes.
    pub(crate) generation: bool,
    /// DELETE responds with the object instead of a `Status`.
    pub(crate) returns_deleted: bool,
    /// Dependents are orphaned by default.
    pub(crate) orphans_by_default: bool,
    /// Index of the stored version.
    pub(crate) storage_version: usize,
    /// Writes to `status` keep the old metadata.
    pub(crate) status_keeps_metadata: bool,
    pub(crate) name: NameRule,
    /// Fields besides metadata that field selectors can use.
    pub(crate) selectable: &'static [&'static str],
}

/// Kinds with a generation.
const GENERATION: &[&str] = &[
    "pods",
    "podtemplates",
    "replicationcontrollers",
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "jobs.batch",
    "cronjobs.batch",
    "ingresses.networking.k8s.io",
    "ingressclasses.networking.k8s.io",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "endpointslices.discovery.k8s.io",
    "priorityclasses.scheduling.k8s.io",
    "horizontalpodautoscalers.autoscaling",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "deviceclasses.resource.k8s.io",
    "resourceslices.resource.k8s.io",
];

/// Kinds whose updates must contain a `resourceVersion`.
const CONDITIONAL: &[&str] = &[
    "customresourcedefinitions.apiextensions.k8s.io",
    "leases.coordination.k8s.io",
    "poddisruptionbudgets.policy",
    "runtimeclasses.node.k8s.io",
    "csidrivers.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "apiservices.apiregistration.k8s.io",
];

/// Kinds that a PUT can create.
const CREATE_ON_UPDATE: &[&str] = &[
    "leases.coordination.k8s.io",
    "events",
    "events.events.k8s.io",
    "services",
    "endpoints",
    "limitranges",
    "roles.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "runtimeclasses.node.k8s.io",
];

/// Kinds whose DELETE responds with the object.
const RETURNS_DELETED: &[&str] = &[
    "namespaces",
    "pods",
    "podtemplates",
    "services",
    "serviceaccounts",
    "resourcequotas",
    "persistentvolumes",
    "persistentvolumeclaims",
    "storageclasses.storage.k8s.io",
    "csidrivers.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
    "volumeattributesclasses.storage.k8s.io",
    "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io",
    "deviceclasses.resource.k8s.io",
    "resourceslices.resource.k8s.io",
];

/// Returns the strategy of a built-in kind.
pub(crate) fn builtin(group: &str, plural: &str) -> Strategy {
    let full = if group.is_empty() {
        plural.to_owned()
    } else {
        format!("{plural}.{group}")
    };
    let full = full.as_str();
    Strategy {
        unconditional_update: !CONDITIONAL.contains(&full),
        create_on_update: CREATE_ON_UPDATE.contains(&full),
        generation: GENERATION.contains(&full),
        returns_deleted: RETURNS_DELETED.contains(&full),
        orphans_by_default: matches!(full, "jobs.batch" | "replicationcontrollers"),
        storage_version: 0,
        status_keeps_metadata: false,
        name: match full {
            "namespaces" | "services" => NameRule::Label,
            _ if group == "rbac.authorization.k8s.io" => NameRule::PathSegment,
            // `events.k8s.io` has a stricter rule, which is checked separately.
            "events" | "events.events.k8s.io" => NameRule::PathSegment,
            _ => NameRule::Subdomain,
        },
        selectable: selectable(full),
    }
}

/// Returns the strategy of custom resources.
pub(crate) fn custom(storage_version: usize) -> Strategy {
    Strategy {
        generation: true,
        storage_version,
        status_keeps_metadata: true,
        ..Strategy::default()
    }
}

fn selectable(full: &str) -> &'static [&'static str] {
    match full {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        "nodes" => &["spec.unschedulable"],
        "secrets" => &["type"],
        "namespaces" => &["status.phase"],
        "services" => &["spec.clusterIP", "spec.type"],
        "jobs.batch" => &["status.successful"],
        "replicasets.apps" | "replicationcontrollers" => &["status.replicas"],
        "certificatesigningrequests.certificates.k8s.io" => &["spec.signerName"],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "events.events.k8s.io" => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        _ => &[],
    }
}
