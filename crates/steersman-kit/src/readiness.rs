// SPDX-License-Identifier: Apache-2.0
//! Readiness of an object by the rules of kstatus, from its group, kind and JSON.
//!
//! The rules are those of `kstatus` in `sigs.k8s.io/cli-utils`, which `kubectl`-like tools, Flux and Argo CD share. They need no
//! type, so that they hold for kinds that a program has no type for.
//!
//! # Guarantees
//! 1. An object that is being deleted is [`Terminating`](Readiness::Terminating), whatever its status says.
//! 2. An object whose `observedGeneration` differs from its `generation` is in progress: its status is about a former spec.
//! 3. A condition `Reconciling=True` means in progress, and `Stalled=True` failed, for every kind.
//! 4. Deployment, StatefulSet, DaemonSet, ReplicaSet, Pod, Job, PersistentVolumeClaim, Service and CustomResourceDefinition
//!    have rules for their own status. PodDisruptionBudget and kinds without a status are ready at once.
//! 5. Every other kind is ready if it has no condition `Ready`, or if that condition is `True`; otherwise it is in progress.
//! 6. Malformed data never causes a panic: a field of another type counts as missing.
//!
//! # Differences from kstatus
//! * A Pod in phase `Failed` is failed. kstatus calls it current, because it has ended.
//! * A Pod that cannot be scheduled is in progress. kstatus calls it failed after 15 s; this result depends on the object alone,
//!   because nothing would reconcile the parent at that time.

mod fields;
mod pods;
mod workloads;

use serde_json::Value;

use self::fields::Fields;

/// Readiness of an object; from [`readiness`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// The object is as its spec says.
    Ready,
    /// Its controller is still working on it.
    InProgress {
        /// Word for programs, such as `LessReady`.
        reason: String,
        /// Explanation for people, such as `1 of 3 replicas are ready`.
        message: String,
    },
    /// Its controller cannot reach the state of the spec.
    Failed {
        /// Word for programs, such as `ProgressDeadlineExceeded`.
        reason: String,
        /// Explanation for people.
        message: String,
    },
    /// The object is being deleted.
    Terminating,
}

impl Readiness {
    /// Creates the state of an object that is in progress.
    #[must_use]
    pub fn in_progress(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InProgress {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Creates the state of an object that failed.
    #[must_use]
    pub fn failed(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Returns true for [`Ready`](Self::Ready).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

/// Returns the readiness of an object of this API group and kind; the group is empty for the core group.
///
/// ```
/// use serde_json::json;
/// use steersman_kit::{Readiness, readiness};
///
/// let claim = json!({"status": {"phase": "Bound"}});
/// assert_eq!(readiness("", "PersistentVolumeClaim", &claim), Readiness::Ready);
/// let widget = json!({
///     "metadata": {"generation": 2},
///     "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]},
/// });
/// assert!(!readiness("example.com", "Widget", &widget).is_ready());
/// ```
#[must_use]
pub fn readiness(group: &str, kind: &str, object: &Value) -> Readiness {
    let fields = Fields::of(object);
    if fields.text("/metadata/deletionTimestamp").is_some() {
        return Readiness::Terminating;
    }
    if let Some(found) = generation_not_observed(&fields).or_else(|| kstatus_conditions(&fields)) {
        return found;
    }
    match (group, kind) {
        ("apps", "Deployment") => workloads::deployment(&fields),
        ("apps", "StatefulSet") => workloads::stateful_set(&fields),
        ("apps", "DaemonSet") => workloads::daemon_set(&fields),
        ("apps", "ReplicaSet") => workloads::replica_set(&fields),
        ("batch", "Job") => pods::job(&fields),
        ("", "Pod") => pods::pod(&fields),
        ("", "PersistentVolumeClaim") => persistent_volume_claim(&fields),
        ("", "Service") => service(&fields),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource_definition(&fields),
        // The observed generation, if any, was compared above. These have nothing else to wait for.
        ("policy", "PodDisruptionBudget") | ("batch", "CronJob") | ("", "ConfigMap" | "Secret") => {
            Readiness::Ready
        }
        _ => ready_condition(&fields),
    }
}

fn generation_not_observed(fields: &Fields<'_>) -> Option<Readiness> {
    let generation = fields.number("/metadata/generation")?;
    let observed = fields.number("/status/observedGeneration")?;
    (observed != generation).then(|| {
        let message = format!("generation is {generation}, but the observed generation is {observed}");
        Readiness::in_progress("LatestGenerationNotObserved", message)
    })
}

fn kstatus_conditions(fields: &Fields<'_>) -> Option<Readiness> {
    fields.conditions().find_map(|condition| {
        let is_true = condition.status == "True";
        match condition.type_ {
            "Reconciling" if is_true => Some(Readiness::in_progress(condition.reason, condition.message)),
            "Stalled" if is_true => Some(Readiness::failed(condition.reason, condition.message)),
            _ => None,
        }
    })
}

fn ready_condition(fields: &Fields<'_>) -> Readiness {
    match fields.condition("Ready") {
        Some(ready) if ready.status != "True" => Readiness::in_progress(ready.reason, ready.message),
        _ => Readiness::Ready,
    }
}

fn persistent_volume_claim(fields: &Fields<'_>) -> Readiness {
    match fields.text("/status/phase").unwrap_or("unknown") {
        "Bound" => Readiness::Ready,
        phase => Readiness::in_progress(
            "NotBound",
            format!("the claim is not bound; its phase is {phase}"),
        ),
    }
}

fn service(fields: &Fields<'_>) -> Readiness {
    let is_load_balancer = fields.text("/spec/type") == Some("LoadBalancer");
    if is_load_balancer && fields.text("/spec/clusterIP").is_none() {
        return Readiness::in_progress("NoIPAssigned", "the load balancer has no cluster IP");
    }
    Readiness::Ready
}

fn custom_resource_definition(fields: &Fields<'_>) -> Readiness {
    for condition in fields.conditions() {
        match (condition.type_, condition.status) {
            ("NamesAccepted", "False") => return Readiness::failed(condition.reason, condition.message),
            ("Established", "True") => return Readiness::Ready,
            ("Established", "False") if condition.reason != "Installing" => {
                return Readiness::failed(condition.reason, condition.message);
            }
            _ => {}
        }
    }
    Readiness::in_progress("Installing", "the API server is installing the CRD")
}
