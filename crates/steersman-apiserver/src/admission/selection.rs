// SPDX-License-Identifier: Apache-2.0
//! Selection: which hooks a write is sent to, and in which version.

use serde_json::Value;

use super::{Attributes, GroupVersionKind, Operation, hook::Hook, review, rule::Requested};
use crate::{
    handler::{FieldValidation, Target, decode, patch::whole},
    status::{Failure, Result},
    store::{Object, Stored},
};

/// A hook that is called, and the version in which it gets the write.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The index of the version in the resource of the request.
    pub(crate) version: usize,
}

impl Invocation {
    /// Returns the kind of the object in the hook's version.
    pub(crate) fn kind(&self, attributes: &Attributes) -> GroupVersionKind {
        let target = &attributes.target;
        if self.version == target.version || attributes.kind != GroupVersionKind::of(target) {
            return attributes.kind.clone();
        }
        GroupVersionKind {
            version: self.version_name(attributes).to_owned(),
            ..attributes.kind.clone()
        }
    }

    pub(crate) fn version_name<'a>(&self, attributes: &'a Attributes) -> &'a str {
        &attributes.target.resource.versions[self.version].name
    }
}

/// Returns the version in which a hook wants the requests for this resource, by its rules alone.
pub(crate) fn version_for(hook: &Hook, operation: Operation, target: &Target) -> Option<usize> {
    let resource = &target.resource;
    let requested = |version: usize| Requested {
        operation,
        group: &resource.group,
        version: &resource.versions[version].name,
        resource: &resource.plural,
        subresource: &target.subresource,
        is_namespaced: resource.namespaced,
    };
    let exact = requested(target.version);
    if hook.rules.iter().any(|rule| rule.selects(exact)) {
        return Some(target.version);
    }
    let others = || (0..resource.versions.len()).filter(|version| resource.versions[*version].served);
    let selected = |rule: &super::rule::Rule| others().find(|version| rule.selects(requested(*version)));
    hook.rules
        .iter()
        .filter(|_| hook.is_equivalent)
        .find_map(selected)
}

/// Decides whether a hook is called for a write.
pub(crate) fn select(
    hook: &Hook,
    attributes: &Attributes,
    namespace: Option<&Stored>,
) -> Result<Option<Invocation>> {
    if !selects_namespace(hook, attributes, namespace) || !selects_object(hook, attributes) {
        return Ok(None);
    }
    let Some(version) = version_for(hook, attributes.operation, &attributes.target) else {
        return Ok(None);
    };
    let invocation = Invocation { version };
    if hook.conditions.is_empty() {
        return Ok(Some(invocation));
    }
    let is_met = conditions(hook, attributes, &invocation)?;
    Ok(is_met.then_some(invocation))
}

fn selects_namespace(hook: &Hook, attributes: &Attributes, namespace: Option<&Stored>) -> bool {
    let is_namespace = attributes.target.resource.is("", "namespaces");
    if hook.namespaces.is_empty() || attributes.namespace().is_empty() && !is_namespace {
        return true;
    }
    let writes = matches!(attributes.operation, Operation::Create | Operation::Update);
    let own = is_namespace && attributes.target.subresource.is_empty() && writes;
    match (own, &attributes.object, namespace) {
        (true, Some(Value::Object(object)), _) => hook.namespaces.matches(object),
        (_, _, Some(namespace)) => hook.namespaces.matches(&namespace.object()),
        _ => hook.namespaces.matches(&Object::new()),
    }
}

fn selects_object(hook: &Hook, attributes: &Attributes) -> bool {
    if hook.objects.is_empty() {
        return true;
    }
    let selects = |object: &Option<Value>| {
        let object = object.as_ref().and_then(Value::as_object);
        object.is_some_and(|object| hook.objects.matches(object))
    };
    selects(&attributes.object) || selects(&attributes.old_object)
}

/// Evaluates the match conditions. One that is false excludes the write; an error is subject to the failure policy.
fn conditions(hook: &Hook, attributes: &Attributes, invocation: &Invocation) -> Result<bool> {
    let none = Value::Null;
    let object = in_version(attributes, invocation.version, attributes.object.as_ref());
    let old = in_version(attributes, invocation.version, attributes.old_object.as_ref());
    let request = review::request(attributes, invocation, "");
    let variables = [
        ("object", object.as_ref().unwrap_or(&none)),
        ("oldObject", old.as_ref().unwrap_or(&none)),
        ("request", &request),
    ];
    let mut errors = Vec::new();
    for condition in &hook.conditions {
        match condition.evaluate(&variables) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => errors.push(format!(
                "expression '{}' resulted in error: {error}",
                condition.text()
            )),
        }
    }
    if errors.is_empty() {
        return Ok(true);
    }
    if hook.ignores_failure {
        return Ok(false);
    }
    let why = if errors.len() == 1 {
        errors.remove(0)
    } else {
        format!("[{}]", errors.join(", "))
    };
    let target = &attributes.target;
    Err(Failure::forbidden(
        target.resource.qualified(),
        &target.name,
        &why,
    ))
}

/// Converts an object of the request to another version of its kind.
pub(crate) fn in_version(attributes: &Attributes, version: usize, object: Option<&Value>) -> Option<Value> {
    let target = &attributes.target;
    if version == target.version || attributes.kind != GroupVersionKind::of(target) {
        return object.cloned();
    }
    let stored = decoded(target, object?.clone()).ok()?;
    let other = Target {
        version,
        ..target.clone()
    };
    Some(whole(&other, &stored))
}

/// Decodes an object that a hook changed, from the version that the hook got.
pub(crate) fn from_version(attributes: &Attributes, version: usize, object: Value) -> Result<Object> {
    let target = &attributes.target;
    if attributes.kind != GroupVersionKind::of(target) {
        let Value::Object(mut object) = object else {
            return Err(Failure::internal("the patched object is no object"));
        };
        object.remove("apiVersion");
        object.remove("kind");
        return Ok(object);
    }
    let other = Target {
        version,
        ..target.clone()
    };
    decoded(&other, object)
}

fn decoded(target: &Target, object: Value) -> Result<Object> {
    let decoded = decode::object(target, object, FieldValidation::Ignore, &[]);
    let (object, _) = decoded.map_err(|failure| Failure::internal(failure.message()))?;
    Ok(object)
}
