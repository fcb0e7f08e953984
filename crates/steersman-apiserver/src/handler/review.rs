// SPDX-License-Identifier: Apache-2.0
//! Reviews: requests that create an object which is answered and never stored.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Call, Reply, Target, WriteOptions, Written, decode, object_reply};
use crate::{
    auth::{self, Identity, authorize::Attributes, rbac, token::ISSUER},
    managed,
    state::Context,
    status::{Failure, FieldError, Qualified, Result},
    store::Object,
};

/// Returns true if the kind is a review.
pub(crate) fn is_review(target: &Target) -> bool {
    matches!(
        target.resource.group.as_str(),
        "authentication.k8s.io" | "authorization.k8s.io"
    )
}

/// Answers a review.
pub(crate) fn create(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    if call.header("accept").contains("as=Table") && !call.header("accept").contains(",") {
        let message = format!(
            "the resource {} does not support being converted to a Table",
            target.resource.kind
        );
        return Err(Failure::not_acceptable(message));
    }
    let options = WriteOptions::parse(call, "CreateOptions")?;
    let (mut object, warnings) = decode::body(call, target, options.validation)?;
    let spec = object.get("spec").cloned().unwrap_or_else(|| json!({}));
    match target.resource.plural.as_str() {
        "selfsubjectreviews" => {
            object = Object::new();
            object.insert(
                "metadata".to_owned(),
                json!({"creationTimestamp": cx.timestamp()}),
            );
            object.insert("status".to_owned(), json!({"userInfo": call.identity.info()}));
        }
        "selfsubjectrulesreviews" => rules(cx, call, &spec, &mut object),
        plural => {
            if let (true, Some(Value::Object(metadata))) =
                (target.resource.namespaced, object.get_mut("metadata"))
            {
                metadata.insert("namespace".to_owned(), json!(target.namespace));
            }
            managed::on_update(cx, target, None, &mut object, &options.manager);
            let status = match plural {
                "tokenreviews" => token(cx, &spec)?,
                _ => access(cx, call, target, &spec)?,
            };
            object.insert("status".to_owned(), status);
        }
    }
    Ok(object_reply(
        call,
        target,
        StatusCode::CREATED,
        &Written::Transient(Box::new(object)),
    )?
    .warned(warnings))
}

fn token(cx: &Context<'_>, spec: &Value) -> Result<Value> {
    let token = spec.get("token").and_then(Value::as_str).unwrap_or_default();
    if token.is_empty() {
        let message = "token is required for TokenReview in authentication";
        return Err(Failure::bad_request(message));
    }
    let given = spec.get("audiences").and_then(Value::as_array);
    let mut requested: Vec<String> = given
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if requested.is_empty() {
        requested.push(ISSUER.to_owned());
    }
    Ok(match auth::identify(cx, token, &requested) {
        Ok((identity, audiences)) => {
            json!({"authenticated": true, "user": identity.info(), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error}),
    })
}

fn access(cx: &Context<'_>, call: &Call, target: &Target, spec: &Value) -> Result<Value> {
    let given = |key: &str| spec.get(key).is_some_and(|value| !value.is_null());
    let mut errors = Vec::new();
    match (given("resourceAttributes"), given("nonResourceAttributes")) {
        (true, true) => {
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                &spec["nonResourceAttributes"],
                detail,
            ));
        }
        (false, false) => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid("spec", &Value::Null, detail));
        }
        _ => {}
    }
    let own = target.resource.plural == "selfsubjectaccessreviews";
    let user = spec.get("user").and_then(Value::as_str).unwrap_or_default();
    let groups: Vec<String> = spec
        .get("groups")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if !own && user.is_empty() && groups.is_empty() {
        errors.push(FieldError::invalid(
            "spec.user",
            &Value::from(""),
            "at least one of user or group must be specified",
        ));
    }
    if !errors.is_empty() {
        // The real server omits the kind here.
        return Err(Failure::invalid(
            Qualified {
                group: &target.resource.group,
                name: "",
            },
            "",
            &errors,
        ));
    }
    let identity = if own {
        call.identity.clone()
    } else {
        Identity::of(user, groups)
    };
    let mut attributes = Attributes::of_review(spec);
    if target.resource.plural == "localsubjectaccessreviews" {
        attributes.namespace.clone_from(&target.namespace);
    }
    if !cx.state.settings.rbac {
        return Ok(json!({"allowed": true}));
    }
    Ok(match rbac::allows(cx, &identity, &attributes) {
        Some(reason) if reason.is_empty() => json!({"allowed": true}),
        Some(reason) => json!({"allowed": true, "reason": reason}),
        None => json!({"allowed": false}),
    })
}

fn rules(cx: &Context<'_>, call: &Call, spec: &Value, object: &mut Object) {
    let namespace = spec.get("namespace").and_then(Value::as_str).unwrap_or_default();
    let all = if cx.state.settings.rbac {
        rbac::rules_for(cx, &call.identity, namespace)
    } else {
        vec![
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
        ]
    };
    let (paths, resources): (Vec<Value>, Vec<Value>) = all
        .into_iter()
        .partition(|rule| rule.get("nonResourceURLs").is_some());
    object.insert("spec".to_owned(), json!({}));
    object.insert(
        "status".to_owned(),
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}),
    );
}
