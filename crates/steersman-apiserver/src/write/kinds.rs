// SPDX-License-Identifier: Apache-2.0
//! Rules that apply to single built-in kinds.

use serde_json::{Value, json};

use super::{certificates, checks, defaults};
use crate::{
    background::protection,
    crd,
    handler::{Target, delete::DeleteOptions},
    policy::authorization,
    resource::at,
    schema::go,
    state::Context,
    status::{FieldError, Result},
    store::{Object, metadata_of},
};

fn is(target: &Target, group: &str, plural: &str) -> bool {
    target.resource.is(group, plural)
}

/// Sets the fields of a new object that only the server is allowed to set.
pub(crate) fn prepare_create(cx: &mut Context<'_>, target: &Target, object: &mut Object) -> Result<()> {
    if is(target, "", "namespaces") {
        object.insert("status".to_owned(), json!({"phase": "Active"}));
        let spec = object.entry("spec").or_insert_with(|| json!({}));
        let finalizers = spec
            .get("finalizers")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
            spec["finalizers"] = Value::Array(finalizers.into_iter().chain([json!("kubernetes")]).collect());
        }
    } else if is(target, "apiextensions.k8s.io", "customresourcedefinitions") {
        crd::prepare_create(object);
    } else if is(target, "", "services") {
        give_address(cx, object);
    } else if is(target, "batch", "jobs") {
        select_own_pods(object);
    } else if is(target, "apps", "daemonsets") {
        count_template(None, object);
    } else if is(target, "certificates.k8s.io", "certificatesigningrequests") {
        certificates::prepare_create(cx, object);
    } else if is(target, "", "nodes") {
        let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        if let Some(Value::Object(spec)) = object.get_mut("spec")
            && let Value::Array(taints) = spec.entry("taints").or_insert_with(|| json!([]))
            && !taints.contains(&taint)
        {
            taints.push(taint);
        }
    } else if let Some(finalizer) = protection::finalizer(&target.resource) {
        object.insert("status".to_owned(), json!({"phase": "Pending"}));
        protect(object, finalizer);
    }
    Ok(())
}

/// Assigns a cluster IP to a Service, unless its type is `ExternalName`.
fn give_address(cx: &mut Context<'_>, object: &mut Object) {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    if spec.get("type") == Some(&json!("ExternalName")) {
        return;
    }
    let headless = spec.get("clusterIP") == Some(&json!("None"));
    if !spec.contains_key("clusterIP") {
        let host = cx.state.repeated_count() + 9;
        spec.insert(
            "clusterIP".to_owned(),
            json!(format!("10.0.{}.{}", host / 250 % 250, host % 250 + 1)),
        );
    }
    let address = spec.get("clusterIP").cloned().unwrap_or_default();
    spec.entry("clusterIPs").or_insert_with(|| json!([address]));
    let dual = headless && !spec.contains_key("selector");
    spec.entry("ipFamilies").or_insert_with(|| {
        if dual {
            json!(["IPv4", "IPv6"])
        } else {
            json!(["IPv4"])
        }
    });
    let policy = if dual { "RequireDualStack" } else { "SingleStack" };
    spec.entry("ipFamilyPolicy").or_insert_with(|| json!(policy));
}

/// Makes a Job select its Pods by its uid, unless `manualSelector` is set.
fn select_own_pods(object: &mut Object) {
    let text = |key: &str| metadata_of(object).get(key).cloned().unwrap_or_default();
    let (uid, name) = (text("uid"), text("name"));
    let labels = json!({
        "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
        "controller-uid": uid, "job-name": name,
    });
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    if spec.get("manualSelector") == Some(&json!(true)) {
        return;
    }
    if let Value::Object(selector) = spec.entry("selector").or_insert_with(|| json!({})) {
        let labels = selector.entry("matchLabels").or_insert_with(|| json!({}));
        labels["batch.kubernetes.io/controller-uid"] = json!(uid);
    }
    let add = |metadata: Option<&mut Value>| {
        if let (Some(Value::Object(metadata)), Some(labels)) = (metadata, labels.as_object()) {
            let known = metadata.entry("labels").or_insert_with(|| json!({}));
            for (key, value) in labels {
                known[key] = value.clone();
            }
        }
    };
    add(spec
        .get_mut("template")
        .and_then(|template| template.get_mut("metadata")));
    let own = object
        .get("spec")
        .and_then(|spec| spec.pointer("/template/metadata/labels"))
        .cloned();
    if let (Some(own), Some(Value::Object(metadata))) = (own, object.get_mut("metadata")) {
        // A Job without labels takes the labels of its Pods.
        metadata.entry("labels").or_insert(own);
    }
}

/// Counts the template changes of a DaemonSet in an annotation; older API versions had a field in the spec.
fn count_template(old: Option<&Object>, object: &mut Object) {
    const COUNT: &str = defaults::TEMPLATE_GENERATION;
    let before = old.and_then(|old| {
        let annotations = metadata_of(old).get("annotations")?;
        annotations.get(COUNT)?.as_str()?.parse::<u64>().ok()
    });
    let template = |object: &Object| at(object, &["spec", "template"]).cloned();
    let count = match (before, old) {
        (Some(count), Some(old)) if template(old) == template(object) => count,
        (Some(count), _) => count + 1,
        (None, _) => 1,
    };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[COUNT] = json!(count.to_string());
    }
}

/// The admission plugin `DefaultTolerationSeconds`: adds tolerations that keep a Pod on a lost node for five minutes,
/// unless the Pod has tolerations for these taints.
pub(super) fn tolerate_lost_nodes(object: &mut Object) {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    let Value::Array(tolerations) = spec.entry("tolerations").or_insert_with(|| json!([])) else {
        return;
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |known: &Value| {
            let text = |field: &str| {
                known
                    .get(field)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            matches!(text("key").as_str(), known if known == key || known.is_empty())
                && matches!(text("effect").as_str(), "" | "NoExecute")
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

/// Adds the protection finalizer that delays deletion while the object is in use.
fn protect(object: &mut Object, finalizer: &str) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && let Value::Array(finalizers) = metadata.entry("finalizers").or_insert_with(|| json!([]))
        && !finalizers.contains(&json!(finalizer))
    {
        finalizers.push(json!(finalizer));
    }
}

/// Sets the fields of an updated object that only the server is allowed to set.
pub(crate) fn prepare_update(
    cx: &mut Context<'_>,
    target: &Target,
    old: &Object,
    object: &mut Object,
) -> Result<()> {
    if is(target, "", "namespaces") && target.subresource != "finalize" {
        let finalizers = at(old, &["spec", "finalizers"]).cloned();
        let spec = object.entry("spec").or_insert_with(|| json!({}));
        if let (Some(finalizers), Value::Object(spec)) = (finalizers, spec) {
            spec.insert("finalizers".to_owned(), finalizers);
        }
    } else if is(target, "apps", "deployments") && target.subresource == "status" {
        // The only built-in kind whose labels cannot be changed through its status.
        let labels = metadata_of(old).get("labels").cloned();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            match labels {
                Some(labels) => metadata.insert("labels".to_owned(), labels),
                None => metadata.remove("labels"),
            };
        }
    } else if is(target, "certificates.k8s.io", "certificatesigningrequests") {
        certificates::prepare_update(cx, old, object);
    } else if is(target, "apps", "daemonsets") {
        count_template(Some(old), object);
    } else if is(target, "", "pods") && target.subresource.is_empty() {
        keep(old, object, &["priority", "preemptionPolicy"]);
        tolerate_lost_nodes(object);
    } else if is(target, "", "pods") && target.subresource == "ephemeralcontainers" {
        only_part(old, object, &["ephemeralContainers"]);
    } else if is(target, "", "pods") && target.subresource == "resize" {
        resize(old, object);
    } else if is(target, "", "services") && target.subresource.is_empty() {
        keep(
            old,
            object,
            &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"],
        );
        give_address(cx, object);
    } else if is(target, "apiextensions.k8s.io", "customresourcedefinitions") && target.subresource.is_empty()
    {
        crd::prepare_update(old, object);
    }
    Ok(())
}

/// Restricts an update to the given fields of the spec.
fn only_part(old: &Object, object: &mut Object, fields: &[&str]) {
    let mut spec = old.get("spec").cloned().unwrap_or_else(|| json!({}));
    if let Value::Object(spec) = &mut spec {
        for field in fields {
            match at(object, &["spec", field]).cloned() {
                Some(value) => spec.insert((*field).to_owned(), value),
                None => spec.remove(*field),
            };
        }
    }
    object.insert("spec".to_owned(), spec);
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let before = metadata_of(old).get(field).cloned();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            match before {
                Some(value) => metadata.insert(field.to_owned(), value),
                None => metadata.remove(field),
            };
        }
    }
}

/// Restricts a resize to the resources of containers. If the containers differ, validation rejects the resize.
fn resize(old: &Object, object: &mut Object) {
    let lists = ["containers", "initContainers"];
    let containers = |object: &Object, list: &str| -> Vec<Value> {
        let items = at(object, &["spec", list]).and_then(Value::as_array);
        items.cloned().unwrap_or_default()
    };
    let count = |object: &Object| lists.map(|list| containers(object, list).len());
    if count(old) != count(object) {
        return;
    }
    let new = lists.map(|list| containers(object, list));
    only_part(old, object, &["resources"]);
    for (list, new) in lists.into_iter().zip(new) {
        let mut merged = containers(old, list);
        let same = merged
            .iter()
            .zip(&new)
            .all(|(old, new)| old["name"] == new["name"]);
        for (container, new) in merged.iter_mut().zip(&new).filter(|_| same) {
            for field in ["resources", "resizePolicy"] {
                if let (Value::Object(container), Some(value)) = (&mut *container, new.get(field)) {
                    container.insert(field.to_owned(), value.clone());
                }
            }
        }
        if !new.is_empty() {
            object["spec"][list] = Value::Array(if same { merged } else { new });
        }
    }
}

/// Keeps the old value of spec fields that an update omits.
fn keep(old: &Object, object: &mut Object, fields: &[&str]) {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return;
    };
    for field in fields {
        if !spec.contains_key(*field)
            && let Some(value) = at(old, &["spec", field])
        {
            spec.insert((*field).to_owned(), value.clone());
        }
    }
}

/// Resets the status of a new object to the empty status that Go writes.
pub(crate) fn reset_status(target: &Target, object: &mut Object, now: &Value) {
    let schema = target.version().schema.resolved();
    let Some(property) = schema.properties.get("status") else {
        return;
    };
    let mut fields = Object::new();
    go::settle(schema, &mut fields);
    match fields.remove("status") {
        Some(status) => object.insert("status".to_owned(), status),
        None if property.go == crate::schema::Go::Always => {
            object.insert("status".to_owned(), go::zero(property))
        }
        None => object.remove("status"),
    };
    if is(target, "", "pods") {
        let class = service_class(object);
        object.insert(
            "status".to_owned(),
            json!({"phase": "Pending", "qosClass": class}),
        );
        let gates = at(object, &["spec", "schedulingGates"]).and_then(Value::as_array);
        if gates.is_some_and(|gates| !gates.is_empty()) {
            object["status"]["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": now,
                "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
    }
}

/// Returns the QoS class of a Pod.
pub(crate) fn service_class(object: &Object) -> &'static str {
    let containers: Vec<Value> = ["initContainers", "containers"]
        .iter()
        .filter_map(|list| at(object, &["spec", list])?.as_array().cloned())
        .flatten()
        .collect();
    let part = |container: &Value, kind: &str, name: &str| {
        container.pointer(&format!("/resources/{kind}/{name}")).cloned()
    };
    let names = ["cpu", "memory"];
    let asks = |container: &Value| {
        names.iter().any(|name| {
            part(container, "requests", name)
                .or(part(container, "limits", name))
                .is_some()
        })
    };
    let bound = |container: &Value| {
        names.iter().all(|name| {
            let limit = part(container, "limits", name);
            limit.is_some() && part(container, "requests", name) == limit
        })
    };
    if !containers.iter().any(asks) {
        "BestEffort"
    } else if containers.iter().all(bound) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Returns true if the kind has graceful deletion; only Pods have.
pub(crate) fn is_graceful(target: &Target) -> bool {
    is(target, "", "pods")
}

/// Returns the grace period of a deletion in seconds.
pub(crate) fn grace_period(target: &Target, object: &Object, options: &DeleteOptions) -> i64 {
    if !is_graceful(target) {
        return 0;
    }
    let text = |path: &[&str]| {
        at(object, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let finished = matches!(text(&["status", "phase"]).as_str(), "Succeeded" | "Failed");
    if text(&["spec", "nodeName"]).is_empty() || finished {
        return 0;
    }
    let own = at(object, &["spec", "terminationGracePeriodSeconds"])
        .and_then(Value::as_i64)
        .unwrap_or(30);
    let wanted = options.grace_period.unwrap_or(own).max(0);
    match metadata_of(object)
        .get("deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
    {
        // A second deletion can only shorten the grace period.
        Some(running) => running.min(wanted),
        None => wanted,
    }
}

/// Returns true if the kind keeps a deleted object for other reasons than `metadata.finalizers`.
pub(crate) fn stays_when_deleted(target: &Target, object: &Object) -> bool {
    if is(target, "apiextensions.k8s.io", "customresourcedefinitions") {
        return true;
    }
    is(target, "", "namespaces") && !spec_finalizers(object).is_empty()
}

/// Returns true if only metadata can keep the object.
pub(crate) fn may_vanish(target: &Target, object: &Object) -> bool {
    !is(target, "", "namespaces") || spec_finalizers(object).is_empty()
}

fn spec_finalizers(object: &Object) -> Vec<Value> {
    at(object, &["spec", "finalizers"])
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

/// Updates the status of an object when its deletion starts.
pub(crate) fn on_deletion(target: &Target, object: &mut Object) {
    if is(target, "", "namespaces")
        && let Some(status) = object.get_mut("status")
    {
        status["phase"] = json!("Terminating");
    }
}

/// Validates the content of a built-in object.
pub(crate) fn validate(
    cx: &Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
    errors: &mut Vec<FieldError>,
) {
    match (target.resource.group.as_str(), target.resource.plural.as_str()) {
        ("apiextensions.k8s.io", "customresourcedefinitions") if target.subresource.is_empty() => {
            crd::validate::check(cx, old, object, errors)
        }
        ("", "namespaces") if target.subresource == "status" => namespace_phase(object, errors),
        ("", "pods" | "resourcequotas") => checks::check(target, old, object, errors),
        _ if target.subresource.is_empty() => checks::check(target, old, object, errors),
        _ => {}
    }
    if errors.is_empty() && target.subresource.is_empty() {
        match (target.resource.group.as_str(), target.resource.plural.as_str()) {
            ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
                authorization::policy(cx, old, object, errors)
            }
            ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
                authorization::binding(cx, old, object, errors)
            }
            _ => {}
        }
    }
}

fn namespace_phase(object: &Object, errors: &mut Vec<FieldError>) {
    let phase = at(object, &["status", "phase"]).cloned().unwrap_or_default();
    let deleting = metadata_of(object).contains_key("deletionTimestamp");
    if !deleting && phase != json!("Active") {
        errors.push(FieldError::invalid(
            "status.Phase",
            &phase,
            "may only be 'Active' if `deletionTimestamp` is empty",
        ));
    } else if deleting && phase != json!("Terminating") {
        errors.push(FieldError::invalid(
            "status.Phase",
            &phase,
            "may only be 'Terminating' if `deletionTimestamp` is not empty",
        ));
    }
}
