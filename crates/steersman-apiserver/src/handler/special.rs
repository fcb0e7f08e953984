// SPDX-License-Identifier: Apache-2.0
//! Subresources that are actions: tokens, evictions, bindings.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Call, Reply, Target, decode,
    delete::{DeleteOptions, remove},
    update::replace,
};
use crate::{
    auth::token::{Account, ISSUER},
    clock::rfc3339,
    managed,
    resource::at,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, metadata_of},
};

/// Gives out a token of a service account.
pub(crate) fn token_request(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "TokenRequest", &mut Vec::new())?;
    let stored = cx
        .state
        .store
        .get(target.resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| target.not_found())?;
    let uid = stored.text("uid");
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
        return Err(Failure::invalid(
            Qualified {
                group: "authentication.k8s.io",
                name: "TokenRequest",
            },
            "",
            &[error],
        ));
    }
    let audiences = match body.pointer("/spec/audiences") {
        Some(Value::Array(audiences)) if !audiences.is_empty() => json!(audiences),
        _ => json!([ISSUER]),
    };
    let expires = cx.now + Duration::from_secs(seconds);
    let account = Account {
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        uid: uid.clone(),
    };
    let id = cx.state.random.uid();
    let token = cx.state.signer.sign(&account, &audiences, &id, cx.now, expires);
    let reference = body
        .pointer("/spec/boundObjectRef")
        .cloned()
        .unwrap_or(Value::Null);
    let mut reply = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": target.name, "namespace": target.namespace, "uid": uid, "creationTimestamp": cx.timestamp()},
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
        "status": {"token": token, "expirationTimestamp": rfc3339(expires)},
    });
    let sent = json!({"spec": body.get("spec")});
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

/// Evicts a pod, unless a disruption budget forbids it.
pub(crate) fn evict(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "Eviction", &mut Vec::new())?;
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
        propagation: None,
    };
    let main = Target {
        subresource: String::new(),
        ..target.clone()
    };
    remove(cx, &main, &options)?;
    let reply =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::json(StatusCode::CREATED, &reply))
}

/// The budget that selects a pod and allows no disruption now.
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

/// There is no kubelet to ask.
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

/// Puts a pod on a node.
pub(crate) fn bind(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let body = decode::value(call, "Binding", &mut Vec::new())?;
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
    let raw = Target {
        subresource: "binding".to_owned(),
        ..target.clone()
    };
    replace(
        cx,
        &raw,
        &Arc::clone(&stored),
        object,
        call.query.filled("dryRun").is_some(),
    )?;
    let reply =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Ok(Reply::json(StatusCode::CREATED, &reply))
}
