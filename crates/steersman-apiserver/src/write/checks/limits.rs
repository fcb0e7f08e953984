// SPDX-License-Identifier: Apache-2.0
//! Validation of LimitRanges, ResourceQuotas and PriorityClasses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, fields, items, text};
use crate::{
    names,
    quantity::amount::{Amount, amounts},
    status::FieldError,
    write::admission::priority,
};

/// Resource names that only quotas have.
const OF_QUOTAS: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
    "storage",
];

/// Resources with integer amounts.
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Validates a PriorityClass.
pub(super) fn priority_class(old: Option<&Value>, class: &Value, errors: &mut Errors<'_>) {
    if let Some(old) = old {
        if old["value"] != class["value"] {
            errors.push(FieldError::forbidden("value", "may not be changed in an update."));
        }
        errors.immutable(
            "preemptionPolicy",
            &old["preemptionPolicy"],
            &class["preemptionPolicy"],
        );
        return;
    }
    let name = text(&class["metadata"], "name");
    let value = class["value"].as_i64().unwrap_or_default();
    if name.starts_with("system-") {
        let known = priority::SYSTEM.iter().find(|(known, _, _)| *known == name);
        let why = match known {
            None => format!("{name} is not a known system priority class"),
            Some((_, wanted, _)) if *wanted != value => {
                format!("value of {name} PriorityClass must be {wanted}")
            }
            Some(_) if class["globalDefault"] == true => {
                format!("globalDefault of {name} PriorityClass must be false")
            }
            Some(_) => return,
        };
        let detail = format!(
            "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
        );
        errors.push(FieldError::forbidden("metadata.name", &detail));
    } else if value > 1_000_000_000 {
        let detail = "maximum allowed value of a user defined priority is 1000000000";
        errors.push(FieldError::forbidden("value", detail));
    }
    let policies = ["PreemptLowerPriority", "Never"];
    errors.one_of("preemptionPolicy", text(class, "preemptionPolicy"), &policies);
}

/// Checks that a resource name is a standard one or has a domain prefix.
fn resource_name(path: &str, name: &str, errors: &mut Errors<'_>) {
    let wrong = names::qualified(name);
    for error in &wrong {
        errors.invalid(path, &json!(name), error);
    }
    let is_known = OF_QUOTAS.contains(&name) || is_huge_page(name);
    if wrong.is_empty() && !name.contains('/') && !is_known {
        let detail = "must be a standard resource type or fully qualified";
        errors.invalid(path, &json!(name), detail);
    }
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Validates a ResourceQuota.
pub(super) fn quota(old: Option<&Value>, quota: &Value, errors: &mut Errors<'_>) {
    let spec = &quota["spec"];
    hard("spec.hard", &spec["hard"], errors);
    scopes(spec, errors);
    scope_selector(spec, errors);
    if let Some(old) = old {
        let set = |spec: &Value| -> BTreeSet<String> {
            let scopes = spec["scopes"].as_array().into_iter().flatten();
            scopes.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if set(&old["spec"]) != set(spec) {
            errors.invalid("spec.scopes", &spec["scopes"], "field is immutable");
        }
    }
}

/// Validates the status of a ResourceQuota.
pub(super) fn quota_status(quota: &Value, errors: &mut Errors<'_>) {
    hard("status.hard", &quota["status"]["hard"], errors);
    hard("status.used", &quota["status"]["used"], errors);
}

fn hard(path: &str, list: &Value, errors: &mut Errors<'_>) {
    for (name, amount) in list.as_object().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        resource_name(&path, name, errors);
        let is_known = name != "storage" && OF_QUOTAS.contains(&name.as_str()) || is_huge_page(name);
        if !name.contains('/') && !is_known {
            errors.invalid(&path, &json!(name), "must be a standard resource for quota");
        }
        let Some(parsed) = amount.as_str().and_then(Amount::parse) else {
            continue;
        };
        if parsed.is_negative() {
            errors.invalid(&path, amount, "must be greater than or equal to 0");
        }
        if WHOLE.contains(&name.as_str()) && !parsed.is_whole() {
            errors.invalid(&path, amount, "must be an integer");
        }
    }
}

/// Returns true if a scope selects objects that can use a resource.
fn fits(scope: &str, resource: &str) -> bool {
    let is_compute = matches!(
        resource,
        "cpu" | "memory" | "limits.cpu" | "limits.memory" | "requests.cpu" | "requests.memory"
    );
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ if SCOPES.contains(&scope) => resource == "pods" || is_compute,
        _ => true,
    }
}

/// Counts the resources of a quota that objects of a scope cannot use.
fn misfits(spec: &Value, scope: &str) -> usize {
    let resources = fields(spec, "hard")
        .into_iter()
        .flatten()
        .map(|(name, _)| name.as_str());
    let known = resources.filter(|name| OF_QUOTAS.contains(name) || is_huge_page(name));
    known.filter(|name| !fits(scope, name)).count()
}

fn conflicts(scopes: &BTreeSet<&str>) -> usize {
    let pairs = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
    let both = pairs
        .iter()
        .filter(|(one, two)| scopes.contains(one) && scopes.contains(two));
    both.count()
}

fn scopes(spec: &Value, errors: &mut Errors<'_>) {
    let (path, value) = ("spec.scopes", &spec["scopes"]);
    let mut seen = BTreeSet::new();
    for scope in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !SCOPES.contains(&scope) {
            errors.invalid(path, value, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid(path, value, "unsupported scope applied to resource");
        }
        seen.insert(scope);
    }
    for _ in 0..conflicts(&seen) {
        errors.invalid(path, value, "conflicting scopes");
    }
}

fn scope_selector(spec: &Value, errors: &mut Errors<'_>) {
    let path = "spec.scopeSelector.matchExpressions";
    let mut seen = BTreeSet::new();
    for (_, requirement) in items(&spec["scopeSelector"], "matchExpressions", path) {
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !SCOPES.contains(&scope) {
            errors.invalid(&format!("{path}.scopeName"), &json!(scope), "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid(
                path,
                &spec["scopeSelector"],
                "unsupported scope applied to resource",
            );
        }
        let has_values = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if SCOPES.contains(&scope) && !has_values && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&format!("{path}.operator"), &json!(operator), detail);
        }
        let is_empty = items(requirement, "values", "").next().is_none();
        match operator {
            "In" | "NotIn" if is_empty => {
                let detail =
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if !is_empty => {
                let detail =
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&format!("{path}.values"), &requirement["values"], detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(
                &format!("{path}.operator"),
                &json!(operator),
                "not a valid selector operator",
            ),
        }
        seen.insert(scope);
    }
    for _ in 0..conflicts(&seen) {
        errors.invalid(path, &spec["scopes"], "conflicting scopes");
    }
}

/// Validates a LimitRange.
pub(super) fn limit_range(range: &Value, errors: &mut Errors<'_>) {
    let mut kinds = BTreeSet::new();
    for (path, limit) in items(&range["spec"], "limits", "spec.limits") {
        let kind = text(limit, "type");
        limit_type(&format!("{path}.type"), kind, errors);
        if !kinds.insert(kind) {
            let path = format!("{path}.type");
            errors.push(FieldError::duplicate(path, &format!("{kind:?}")));
        }
        for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            if kind == "Pod" && field.starts_with("default") {
                if fields(limit, field).is_some_and(|fields| !fields.is_empty()) {
                    let detail = "may not be specified when `type` is 'Pod'";
                    errors.push(FieldError::forbidden(format!("{path}.{field}"), detail));
                }
                continue;
            }
            for (name, _) in fields(limit, field).into_iter().flatten() {
                resource_name(&format!("{path}.{field}[{name}]"), name, errors);
            }
        }
        let has_storage = |field: &str| limit[field].get("storage").is_some();
        if kind == "PersistentVolumeClaim" && !has_storage("min") && !has_storage("max") {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(FieldError::required(format!("{path}.limits"), detail));
        }
        bounds(&path, kind, limit, errors);
    }
}

fn limit_type(path: &str, kind: &str, errors: &mut Errors<'_>) {
    let wrong = names::qualified(kind);
    for error in &wrong {
        errors.invalid(path, &json!(kind), error);
    }
    let is_known = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
    if wrong.is_empty() && !kind.contains('/') && !is_known {
        let detail = "must be a standard limit type or fully qualified";
        errors.invalid(path, &json!(kind), detail);
    }
}

/// Checks that the bounds and defaults of each resource agree.
fn bounds(path: &str, kind: &str, limit: &Value, errors: &mut Errors<'_>) {
    let [min, max, ratio] = ["min", "max", "maxLimitRequestRatio"].map(|field| amounts(&limit[field]));
    let [default, request] = ["default", "defaultRequest"].map(|field| {
        let amounts = amounts(&limit[field]);
        if kind == "Pod" {
            Default::default()
        } else {
            amounts
        }
    });
    let lists = [&min, &max, &default, &request, &ratio];
    let names: BTreeSet<&String> = lists.iter().flat_map(|list| list.keys()).collect();
    for name in names {
        let [min, max, default, request, ratio] = lists.map(|list| list.get(name).copied());
        let mut greater =
            |field: &str, one: (Option<Amount>, &str), two: (Option<Amount>, &str), shown: Option<Amount>| {
                let (Some(low), Some(high)) = (one.0, two.0) else {
                    return;
                };
                if low > high {
                    let detail = format!("{} {low} is greater than {} {high}", one.1, two.1);
                    let shown = shown.unwrap_or_default().to_string();
                    errors.invalid(&format!("{path}.{field}[{name}]"), &json!(shown), &detail);
                }
            };
        let (low, high) = ((min, "min value"), (max, "max value"));
        greater("min", low, high, min);
        greater("defaultRequest", low, (request, "default request value"), request);
        greater(
            "defaultRequest",
            (request, "default request value"),
            high,
            request,
        );
        let limit = (default, "default limit value");
        greater(
            "defaultRequest",
            (request, "default request value"),
            limit,
            request,
        );
        greater("default", low, (default, "default value"), min);
        greater("default", (default, "default value"), high, max);
        let Some(ratio) = ratio else {
            continue;
        };
        let at = format!("{path}.maxLimitRequestRatio[{name}]");
        if ratio < Amount::ONE {
            errors.invalid(
                &at,
                &json!(ratio.to_string()),
                &format!("ratio {ratio} is less than 1"),
            );
        }
        if let (Some(min), Some(max)) = (min, max)
            && ratio.number() > max.ratio(min)
        {
            let detail = format!("ratio {ratio} is greater than max/min = {:.6}", max.ratio(min));
            errors.invalid(&at, &json!(ratio.to_string()), &detail);
        }
    }
}
