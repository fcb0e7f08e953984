// SPDX-License-Identifier: Apache-2.0
//! Selection: which hooks a write is sent to, and in which version.

use serde_json::Value;

use super::{Attributes, GroupVersionKind, Operation, hook::Hook};
use crate::{
    handler::{FieldValidation, Target, decode},
    policy::{
        self,
        matching::{self, Matched},
        verdict::{Inputs, matches},
    },
    status::{Failure, Result},
    store::{Object, Stored},
};

/// Returns the resource and version through which the rules of a hook select a request; `None` if they do not.
pub(crate) fn by_rules(
    hook: &Hook,
    operation: Operation,
    target: &Target,
    equivalents: &[Target],
) -> Option<Matched> {
    let selects = |rule: &Value, target: &Target| matching::selects(rule, operation, target);
    if hook.rules.iter().any(|rule| selects(rule, target)) {
        return Some(target.clone());
    }
    let other = |rule: &Value| equivalents.iter().find(|other| selects(rule, other)).cloned();
    hook.rules.iter().filter(|_| hook.is_equivalent).find_map(other)
}

/// Decides whether a hook is called for a write.
///
/// # Errors
/// Returns the failure of match conditions that cannot be evaluated.
pub(crate) fn select(
    hook: &Hook,
    attributes: &Attributes,
    equivalents: &[Target],
    namespace: Option<&Stored>,
) -> Result<Option<Matched>> {
    if !selects_namespace(hook, attributes, namespace) || !selects_object(hook, attributes) {
        return Ok(None);
    }
    let Some(matched) = by_rules(hook, attributes.operation, &attributes.target, equivalents) else {
        return Ok(None);
    };
    let is_met = hook.conditions.is_empty() || conditions(hook, attributes, &matched)?;
    Ok(is_met.then_some(matched))
}

fn selects_namespace(hook: &Hook, attributes: &Attributes, namespace: Option<&Stored>) -> bool {
    let is_namespace = attributes.target.resource.is("", "namespaces");
    if hook.namespaces.is_empty() || attributes.namespace().is_empty() && !is_namespace {
        return true;
    }
    let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
    let own = is_namespace && attributes.target.subresource.is_empty() && writes;
    match (own, &attributes.object, namespace) {
        (true, Some(object), _) => hook.namespaces.matches_value(object),
        (_, _, Some(namespace)) => hook.namespaces.matches(&namespace.object()),
        _ => hook.namespaces.matches(&Object::new()),
    }
}

fn selects_object(hook: &Hook, attributes: &Attributes) -> bool {
    let mut objects = attributes.object.iter().chain(&attributes.old_object);
    hook.objects.is_empty() || objects.any(|object| hook.objects.matches_value(object))
}

/// Evaluates the match conditions. One that is false excludes the write; an error is subject to the failure policy.
fn conditions(hook: &Hook, attributes: &Attributes, matched: &Matched) -> Result<bool> {
    let shown = |object: &Option<Value>| {
        object
            .as_ref()
            .map(|object| in_version(attributes, matched, object))
    };
    let (object, old) = (shown(&attributes.object), shown(&attributes.old_object));
    let inputs = Inputs {
        object: object.as_ref(),
        old_object: old.as_ref(),
        request: &policy::request(attributes, matched),
        params: None,
        namespace: None,
    };
    match matches(&hook.conditions, &inputs) {
        Ok(is_met) => Ok(is_met),
        Err(_) if hook.ignores_failure => Ok(false),
        Err(why) => {
            let target = &attributes.target;
            Err(Failure::forbidden(
                target.resource.qualified(),
                &target.name,
                &why,
            ))
        }
    }
}

/// Returns an object of the request in the version through which a hook was selected.
pub(crate) fn in_version(attributes: &Attributes, matched: &Matched, object: &Value) -> Value {
    if attributes.kind != GroupVersionKind::of(&attributes.target) {
        return object.clone();
    }
    policy::in_version(object, attributes, matched)
}

/// Decodes an object that a hook changed, from the version that the hook got.
pub(crate) fn from_version(attributes: &Attributes, matched: &Matched, object: Value) -> Result<Object> {
    if attributes.kind != GroupVersionKind::of(&attributes.target) {
        let Value::Object(mut object) = object else {
            return Err(Failure::internal("the patched object is no object"));
        };
        object.remove("apiVersion");
        object.remove("kind");
        return Ok(object);
    }
    let decoded = decode::object(matched, object, FieldValidation::Ignore, &[]);
    let failed = |failure: Failure| {
        let message = failure.message();
        let error = message
            .split_once(": json: ")
            .map(|(_, error)| format!("json: {error}"));
        Failure::internal(error.unwrap_or_else(|| message.to_owned()))
    };
    Ok(decoded.map_err(failed)?.0)
}
