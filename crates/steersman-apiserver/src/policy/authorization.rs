// SPDX-License-Identifier: Apache-2.0
//! Authorization of policies and bindings: their author must be allowed to read the parameters.

use serde_json::Value;

use super::params::ParamKind;
use crate::{
    admission,
    auth::{Identity, authorize::Attributes, rbac},
    state::Context,
    status::FieldError,
    store::Object,
};

/// Checks a valid policy, if its kind of parameters is new.
pub(crate) fn policy(cx: &Context<'_>, old: Option<&Object>, object: &Object, errors: &mut Vec<FieldError>) {
    let kind = spec(object, "paramKind");
    let is_same = old.is_some_and(|old| spec(old, "paramKind") == kind);
    let Some(user) = author(cx).filter(|_| !kind.is_null() && !is_same) else {
        return;
    };
    let wanted = Attributes {
        verb: "get".to_owned(),
        name: "*".to_owned(),
        namespace: "*".to_owned(),
        ..kind_attributes(cx, &kind)
    };
    if rbac::allows(cx, user, &wanted).is_none() {
        let text = |key: &str| kind[key].as_str().unwrap_or_default().to_owned();
        let why = format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            user.printed(),
            text("kind"),
            text("apiVersion")
        );
        errors.push(FieldError::forbidden("spec.paramKind", &why));
    }
}

/// Checks a valid binding, if its policy or its reference to parameters is new.
pub(crate) fn binding(cx: &Context<'_>, old: Option<&Object>, object: &Object, errors: &mut Vec<FieldError>) {
    let reference = spec(object, "paramRef");
    let is_same = old.is_some_and(|old| {
        spec(old, "paramRef") == reference && spec(old, "policyName") == spec(object, "policyName")
    });
    let Some(user) = author(cx).filter(|_| !reference.is_null() && !is_same) else {
        return;
    };
    let name = spec(object, "policyName");
    let name = name.as_str().unwrap_or_default();
    let policy = cx.find(super::GROUP, "validatingadmissionpolicies", name);
    let kind = policy.map_or(Value::Null, |policy| spec(&policy.object(), "paramKind"));
    let text = |key: &str| reference[key].as_str().unwrap_or_default().to_owned();
    let verb = if text("name").is_empty() { "list" } else { "get" };
    let wanted = Attributes {
        verb: verb.to_owned(),
        name: text("name"),
        namespace: text("namespace"),
        ..kind_attributes(cx, &kind)
    };
    if rbac::allows(cx, user, &wanted).is_some() {
        return;
    }
    let user = user.printed();
    let everywhere = format!("does not have \"{verb}\" permission for all groups, versions and resources");
    let why = if policy.is_none() {
        format!(
            "unable to get policy {name} to determine minimum required permissions and user {user} {everywhere}"
        )
    } else if !kind.is_null() && ParamKind::find(&cx.state.registry, &kind).is_err() {
        let text = |key: &str| kind[key].as_str().unwrap_or_default().to_owned();
        let kind = format!(
            "&ParamKind{{APIVersion:{},Kind:{},}}",
            text("apiVersion"),
            text("kind")
        );
        format!(
            "unable to resolve paramKind {kind} to determine minimum required permissions and user {user} {everywhere}"
        )
    } else {
        format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef")
    };
    errors.push(FieldError::forbidden("spec.paramRef", &why));
}

fn spec(object: &Object, field: &str) -> Value {
    object
        .get("spec")
        .map(|spec| spec[field].clone())
        .unwrap_or_default()
}

/// Returns the user who writes, unless no permission is checked.
fn author<'a>(cx: &'a Context<'_>) -> Option<&'a Identity> {
    admission::user(cx).filter(|_| cx.state.settings.rbac)
}

/// Returns the attributes of a request for a kind; for all kinds if it is not known.
fn kind_attributes(cx: &Context<'_>, kind: &Value) -> Attributes {
    let any = || "*".to_owned();
    let version = kind["apiVersion"].as_str();
    let group = version.map(|version| version.split_once('/').map_or("", |(group, _)| group));
    Attributes {
        group: group.map_or_else(any, str::to_owned),
        resource: ParamKind::find(&cx.state.registry, kind).map_or_else(|_| any(), |kind| kind.plural()),
        ..Attributes::default()
    }
}
