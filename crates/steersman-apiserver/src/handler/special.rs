// SPDX-License-Identifier: Apache-2.0
//! Subresources that are actions: token requests, evictions, bindings.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Call, Reply, Target, decode,
    delete::{DeleteOptions, remove},
    update::replace,
};
use crate::{
    admission::{self, GroupVersionKind, Operation, Write},
    auth::token::{Account, BOUND_KINDS, Bound, ISSUER},
    clock::rfc3339,
    managed,
    resource::{Subresource, at},
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, metadata_of},
};

/// Returns the kind of the object that an action takes.
fn kind_of(target: &Target) -> GroupVersionKind {
    let sub = target.version().subresource(&target.subresource);
    let text = |field: fn(&Subresource) -> &String| sub.map(field).cloned().unwrap_or_default();
    let version = text(|sub| &sub.version);
    GroupVersionKind {
        group: text(|sub| &sub.group),
        version: if version.is_empty() {
            target.version().name.clone()
        } else {
            version
        },
        kind: text(|sub| &sub.kind),
    }
}

/// Runs the mutating hooks of an action, whose object is never stored.
fn mutate(cx: &mut Context<'_>, call: &Call, target: &Target, body: Value) -> Result<Value> {
    let Value::Object(mut object) = body else {
        return Ok(body);
    };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Value::Object(metadata) = metadata {
        metadata
            .entry("namespace")
            .or_insert_with(|| json!(target.namespace));
    }
    let kind = kind_of(target);
    let write = Write {
        kind: Some(&kind),
        ..Write::create(target, &object, call.query.filled("dryRun").is_some())
    };
    let changed = admission::mutate(cx, write, |_, _| Ok(()))?;
    Ok(Value::Object(changed.unwrap_or(object)))
}

/// Runs the validating hooks of an action.
fn validate(cx: &mut Context<'_>, call: &Call, target: &Target, body: &Value) -> Result<()> {
    let Value::Object(object) = body else {
        return Ok(());
    };
    let kind = kind_of(target);
    let write = Write {
        kind: Some(&kind),
        ..Write::create(target, object, call.query.filled("dryRun").is_some())
    };
    admission::validate(cx, write)
}

/// Runs all hooks of an action.
fn admit(cx: &mut Context<'_>, call: &Call, target: &Target, body: Value) -> Result<Value> {
    let body = mutate(cx, call, target, body)?;
    validate(cx, call, target, &body)?;
    Ok(body)
}

/// Issues a token for a service account.
pub(crate) fn token_request(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "TokenRequest", &mut Vec::new())?;
    let body = mutate(cx, call, target, body)?;
    let stored = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    let uid = stored.text("uid");
    let invalid = |name: &str, error: FieldError| {
        let kind = Qualified {
            group: "authentication.k8s.io",
            name: "TokenRequest",
        };
        Failure::invalid(kind, name, &[error])
    };
    for (field, own) in [("name", &target.name), ("namespace", &target.namespace)] {
        let given = body
            .pointer(&format!("/metadata/{field}"))
            .and_then(Value::as_str);
        if given.is_some_and(|given| !given.is_empty() && given != own) {
            let detail = format!("must match the service account {field} if specified");
            let path = format!("metadata.{field}");
            let error = FieldError::invalid(path, &json!(given), &detail);
            return Err(invalid(&target.name, error));
        }
    }
    let seconds = body
        .pointer("/spec/expirationSeconds")
        .and_then(Value::as_u64)
        .unwrap_or(3600);
    if !(600..=1 << 32).contains(&seconds) {
        let detail = if seconds < 600 {
            "may not specify a duration less than 10 minutes"
        } else {
            "may not specify a duration larger than 2^32 seconds"
        };
        let error = FieldError::invalid("spec.expirationSeconds", &json!(seconds), detail);
        return Err(invalid("", error));
    }
    let audiences = match body.pointer("/spec/audiences") {
        Some(Value::Array(audiences)) if !audiences.is_empty() => json!(audiences),
        _ => json!([ISSUER]),
    };
    let expires = cx.now + Duration::from_secs(seconds);
    let bound = bound_object(cx, target, &body)?;
    let reference = body
        .pointer("/spec/boundObjectRef")
        .cloned()
        .unwrap_or(Value::Null);
    let mut reply = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": target.name, "namespace": target.namespace, "uid": uid, "creationTimestamp": cx.timestamp()},
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
        "status": {"token": "", "expirationTimestamp": null},
    });
    validate(cx, call, target, &reply)?;
    let account = Account {
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        uid: uid.clone(),
        node: node_of(cx, bound.as_ref(), &target.namespace),
        bound,
    };
    let id = cx.state.random.uid();
    let token = cx.state.signer.sign(&account, &audiences, &id, cx.now, expires);
    reply["status"] = json!({"token": token, "expirationTimestamp": rfc3339(expires)});
    let mut sent = json!({"spec": body.get("spec").cloned().unwrap_or_else(|| json!({}))});
    sent["spec"]["expirationSeconds"] = json!(seconds);
    if let Some(managed) = managed::of_new(
        "io.k8s.api.authentication.v1.TokenRequest",
        &sent,
        &call.manager(),
        "authentication.k8s.io/v1",
        "token",
        cx.now,
    ) {
        reply["metadata"]["managedFields"] = managed;
    }
    Ok(Reply::json(StatusCode::CREATED, &reply))
}

/// Returns the object that the requested token is bound to.
fn bound_object(cx: &Context<'_>, target: &Target, body: &Value) -> Result<Option<Bound>> {
    let Some(reference) = body
        .pointer("/spec/boundObjectRef")
        .filter(|reference| reference.is_object())
    else {
        return Ok(None);
    };
    let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = cx.state.registry.find_kind(group, kind).filter(|resource| {
        let plural = resource.plural.as_str();
        group.is_empty() && BOUND_KINDS.iter().any(|(known, _)| *known == plural)
    });
    let Some(resource) = resource else {
        return Err(Failure::bad_request(format!(
            "cannot bind token to object of type {group}/{version}, Kind={kind}"
        )));
    };
    let name = text("name").to_owned();
    let key = resource.key(&target.namespace, &name);
    let stored = cx.state.store.get(resource.storage, &key);
    let stored = stored.ok_or_else(|| Failure::not_found(resource.qualified(), &name))?;
    let object = stored.object();
    let account = at(&object, &["spec", "serviceAccountName"]).and_then(Value::as_str);
    if kind == "Pod" && account.unwrap_or_default() != target.name {
        return Err(Failure::bad_request(format!(
            "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
            target.name
        )));
    }
    let (uid, wanted) = (stored.text("uid"), text("uid"));
    if !wanted.is_empty() && wanted != uid {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        let of = Qualified {
            group: "",
            name: kind,
        };
        return Err(Failure::conflict(of, &name, &why));
    }
    let resource = resource.plural.clone();
    Ok(Some(Bound { resource, name, uid }))
}

/// Returns name and uid of the node of the Pod that a token is bound to; the uid is empty if the node does not exist.
fn node_of(cx: &Context<'_>, bound: Option<&Bound>, namespace: &str) -> Option<(String, String)> {
    let bound = bound.filter(|bound| bound.resource == "pods")?;
    let pod = cx.find("", "pods", &format!("{namespace}/{}", bound.name))?;
    let object = pod.object();
    let name = at(&object, &["spec", "nodeName"])?.as_str()?;
    let uid = cx.find("", "nodes", name).map(|node| node.text("uid"));
    Some((name.to_owned(), uid.unwrap_or_default()))
}

/// Evicts a Pod, unless a disruption budget forbids it.
pub(crate) fn evict(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "Eviction", &mut Vec::new())?;
    let body = admit(cx, call, target, body)?;
    let stored = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    if let Some(budget) = blocking_budget(cx, target, stored.metadata().get("labels")) {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = format!("The disruption budget {budget} does not allow evictions at the moment");
        return Err(
            Failure::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with_cause(
                "DisruptionBudget",
                &cause,
                "",
            ),
        );
    }
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let options = DeleteOptions {
        uid: text("/deleteOptions/preconditions/uid"),
        resource_version: text("/deleteOptions/preconditions/resourceVersion"),
        grace_period: body
            .pointer("/deleteOptions/gracePeriodSeconds")
            .and_then(Value::as_i64),
        dry_run: body.pointer("/deleteOptions/dryRun").is_some() || call.query.filled("dryRun").is_some(),
        cascades_of_old: false,
        is_of_collection: false,
        propagation: None,
    };
    let main = Target {
        subresource: String::new(),
        ..target.clone()
    };
    cx.admitted(|cx| remove(cx, &main, &options))?;
    let reply =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::json(StatusCode::CREATED, &reply))
}

/// Returns the budget that selects a Pod and currently allows no disruption.
fn blocking_budget(cx: &Context<'_>, target: &Target, labels: Option<&Value>) -> Option<String> {
    let budgets = cx.all("policy", "poddisruptionbudgets");
    let blocking = budgets
        .map(|budget| budget.object())
        .filter(|budget| {
            metadata_of(budget).get("namespace").and_then(Value::as_str) == Some(&target.namespace)
        })
        .find(|budget| {
            let wanted = at(budget, &["spec", "selector", "matchLabels"]).and_then(Value::as_object);
            let selected = wanted.is_some_and(|wanted| {
                wanted
                    .iter()
                    .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
            });
            let allowed = at(budget, &["status", "disruptionsAllowed"])
                .and_then(Value::as_i64)
                .unwrap_or_default();
            selected && allowed <= 0
        });
    blocking.and_then(|budget| metadata_of(&budget).get("name")?.as_str().map(str::to_owned))
}

/// Runs the admission hooks of a connection to a Pod, Service or Node, and returns the failure of a server without
/// kubelets.
pub(crate) fn connect(cx: &mut Context<'_>, call: &Call, target: &Target) -> Failure {
    let sub = target.version().subresource(&target.subresource);
    let kind = sub.map_or("", |sub| sub.kind.as_str()).to_owned();
    let kind = GroupVersionKind {
        group: String::new(),
        version: "v1".to_owned(),
        kind,
    };
    let mut object = Object::new();
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if call.query.flag(flag) && call.query.get(flag).is_some() {
            object.insert(flag.to_owned(), json!(true));
        }
    }
    for text in ["container", "path"] {
        if let Some(value) = call.query.filled(text) {
            object.insert(text.to_owned(), json!(value));
        }
    }
    let command: Vec<&str> = call.query.all("command").collect();
    if !command.is_empty() {
        object.insert("command".to_owned(), json!(command));
    }
    let write = Write {
        operation: Operation::Connect,
        kind: Some(&kind),
        ..Write::create(target, &object, false)
    };
    match admission::admit(cx, write) {
        Ok(_) => not_implemented(cx, target),
        Err(failure) => failure,
    }
}

/// Returns the failure for subresources that need a kubelet; this server has none.
pub(crate) fn not_implemented(cx: &Context<'_>, target: &Target) -> Failure {
    if cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .is_none()
    {
        return target.not_found();
    }
    let message = format!(
        "{} of {} needs a kubelet, and this server has none",
        target.subresource, target.resource.plural
    );
    Failure::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}

/// Binds a Pod to a node.
pub(crate) fn bind(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "Binding", &mut Vec::new())?;
    let body = admit(cx, call, target, body)?;
    let stored = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    let node = body
        .pointer("/target/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if node.is_empty() {
        let error = FieldError::required("target.name", "");
        return Err(Failure::invalid(
            Qualified {
                group: "",
                name: "Binding",
            },
            &target.name,
            &[error],
        ));
    }
    let mut object = Object::clone(&stored.object());
    let bound = at(&object, &["spec", "nodeName"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !bound.is_empty() {
        let why = format!("pod {} is already assigned to node {bound:?}", target.name);
        return Err(Failure::conflict(
            Qualified {
                group: "",
                name: "pods/binding",
            },
            &target.name,
            &why,
        ));
    }
    let gates = at(&object, &["spec", "schedulingGates"]).and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        let why = format!("pod {} has non-empty .spec.schedulingGates", target.name);
        return Err(Failure::conflict(
            Qualified {
                group: "",
                name: "pods/binding",
            },
            &target.name,
            &why,
        ));
    }
    object["spec"]["nodeName"] = json!(node);
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": cx.timestamp()});
    if let Some(Value::Object(status)) = object.get_mut("status") {
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if let Value::Array(conditions) = conditions {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(scheduled);
        }
    }
    let annotations = body
        .pointer("/metadata/annotations")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    if !annotations.is_empty() {
        let mut all = metadata_of(&object)
            .get("annotations")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        all.extend(annotations);
        object["metadata"]["annotations"] = json!(all);
    }
    let labels = body.pointer("/metadata/labels").and_then(Value::as_object);
    for (key, value) in labels.into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
    crate::write::admission::topology::label(cx, &mut object, node);
    let raw = Target {
        subresource: "binding".to_owned(),
        ..target.clone()
    };
    let dry_run = call.query.filled("dryRun").is_some();
    cx.admitted(|cx| replace(cx, &raw, &stored, object, dry_run))?;
    let reply =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::json(StatusCode::CREATED, &reply))
}
