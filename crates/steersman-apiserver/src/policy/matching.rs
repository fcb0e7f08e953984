// SPDX-License-Identifier: Apache-2.0
//! The writes that an admission configuration selects: rules, excluded rules, names, namespaces and labels.
//!
//! Used by `matchConstraints` of policies, `matchResources` of bindings, and `rules` of webhooks.

use serde_json::Value;

use crate::{
    admission::{Attributes, Operation},
    handler::Target,
    resource::Registry,
    selector::Selector,
};

/// The resource and version through which a write is selected. It differs from the requested one if the match policy is
/// `Equivalent` and a rule names another version of the resource.
pub(crate) type Matched = Target;

/// Returns the resource through which `matchResources` select a write; `None` if they do not.
pub(crate) fn matched(
    resources: &Value,
    write: &Attributes,
    namespace: Option<&Value>,
    registry: &Registry,
) -> Option<Matched> {
    if !selects_namespace(&resources["namespaceSelector"], write, namespace)
        || !selects_object(&resources["objectSelector"], write)
    {
        return None;
    }
    let is_exact = resources["matchPolicy"] == "Exact";
    let rules = |key: &str| resources[key].as_array().map(Vec::as_slice).unwrap_or_default();
    if by_rules(rules("excludeResourceRules"), is_exact, write, registry).is_some() {
        return None;
    }
    match rules("resourceRules") {
        [] => Some(write.target.clone()),
        rules => by_rules(rules, is_exact, write, registry),
    }
}

/// Returns the resource through which rules select a write; `None` if no rule does.
pub(crate) fn by_rules(
    rules: &[Value],
    is_exact: bool,
    write: &Attributes,
    registry: &Registry,
) -> Option<Matched> {
    let is_selected =
        |rule: &&Value, target: &Target| selects(rule, write.operation, target) && has_name(rule, write);
    if rules.iter().any(|rule| is_selected(&rule, &write.target)) {
        return Some(write.target.clone());
    }
    if is_exact {
        return None;
    }
    let equivalents = equivalents(&write.target, registry);
    rules.iter().find_map(|rule| {
        let found = equivalents.iter().find(|target| is_selected(&rule, target));
        found.cloned()
    })
}

/// Returns the same resource in its other versions and groups.
pub(crate) fn equivalents(target: &Target, registry: &Registry) -> Vec<Target> {
    let same_storage = registry
        .all()
        .iter()
        .filter(|resource| resource.storage == target.resource.storage);
    let mut found = Vec::new();
    for resource in same_storage {
        for (version, known) in resource.versions.iter().enumerate() {
            let is_requested = resource.group == target.resource.group && version == target.version;
            let has_subresource =
                target.subresource.is_empty() || known.subresource(&target.subresource).is_some();
            if known.served && !is_requested && has_subresource {
                found.push(Target {
                    resource: resource.clone(),
                    version,
                    ..target.clone()
                });
            }
        }
    }
    found
}

/// Returns true if a rule selects the operation, group, version, scope and resource.
pub(crate) fn selects(rule: &Value, operation: Operation, target: &Target) -> bool {
    let lists = |key: &str, wanted: &str| {
        let values = rule[key].as_array().into_iter().flatten();
        values
            .filter_map(Value::as_str)
            .any(|value| value == "*" || value == wanted)
    };
    let is_namespace = target.resource.is("", "namespaces");
    let is_in_scope = match rule["scope"].as_str().unwrap_or("*") {
        "Namespaced" => !is_namespace && !target.namespace.is_empty(),
        "Cluster" => is_namespace || target.namespace.is_empty(),
        _ => true,
    };
    let mut resources = rule["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    is_in_scope
        && lists("operations", operation.name())
        && lists("apiGroups", &target.resource.group)
        && lists("apiVersions", &target.version().name)
        && resources.any(|pattern| {
            let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
            (resource == "*" || resource == target.resource.plural)
                && (subresource == "*" || subresource == target.subresource)
        })
}

/// Returns true if a rule names the object, or no object.
fn has_name(rule: &Value, write: &Attributes) -> bool {
    match rule["resourceNames"].as_array() {
        Some(names) if !names.is_empty() => names.iter().any(|name| *name == write.target.name.as_str()),
        _ => true,
    }
}

/// Returns true if a selector selects the namespace of a write. Cluster-scoped objects are always selected, except
/// Namespaces, which are selected by their own labels.
pub(crate) fn selects_namespace(selector: &Value, write: &Attributes, namespace: Option<&Value>) -> bool {
    let selector = Selector::structured(selector);
    let is_namespace = write.target.resource.is("", "namespaces");
    if selector.is_empty() || write.target.namespace.is_empty() && !is_namespace {
        return true;
    }
    let is_written = is_namespace
        && write.target.subresource.is_empty()
        && matches!(write.operation, Operation::Create | Operation::Update);
    let namespace = match is_written {
        true => write.object.as_ref(),
        false => namespace,
    };
    namespace.is_some_and(|namespace| selector.matches_value(namespace))
}

/// Returns true if a selector selects the new or the old object.
pub(crate) fn selects_object(selector: &Value, write: &Attributes) -> bool {
    let selector = Selector::structured(selector);
    let mut objects = write.object.iter().chain(&write.old_object);
    selector.is_empty() || objects.any(|object| selector.matches_value(object))
}
