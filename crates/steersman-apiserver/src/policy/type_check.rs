// SPDX-License-Identifier: Apache-2.0
//! The type check of policies: warnings about fields that the selected kinds do not have, in the status of the policy.
//!
//! kube-controller-manager does this. It checks more than this server, see [`crate::cel::expression`].

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{GROUP, compiled::list};
use crate::{
    cel::expression::{Expression, Scope, Type},
    handler::Target,
    managed,
    resource::{Registry, Version},
    state::Context,
    store::{Object, metadata_of},
};

/// The field manager of the status.
const MANAGER: &str = "validatingadmissionpolicy-status";
/// Maximum number of kinds that are checked for one rule.
const KINDS_MAX: usize = 10;

/// Checks a policy whose generation is not checked yet.
pub(crate) fn advance(cx: &mut Context<'_>, name: &str) {
    let (Some(resource), Some(stored)) = (
        cx.state
            .registry
            .find(GROUP, "validatingadmissionpolicies")
            .cloned(),
        cx.find(GROUP, "validatingadmissionpolicies", name).cloned(),
    ) else {
        return;
    };
    let live = Object::clone(&stored.object());
    let generation = metadata_of(&live).get("generation").and_then(Value::as_i64);
    let status = live.get("status").cloned().unwrap_or_default();
    if generation <= status["observedGeneration"].as_i64() {
        return;
    }
    let warnings = warnings(&cx.state.registry, live.get("spec").unwrap_or(&Value::Null));
    let mut check = json!({});
    if !warnings.is_empty() {
        check["expressionWarnings"] = json!(warnings);
    }
    let target = Target {
        subresource: "status".to_owned(),
        ..Target::of(&resource, &stored)
    };
    let config = json!({
        "metadata": {"name": name},
        "status": {"observedGeneration": generation, "typeChecking": check},
    });
    let Value::Object(config) = config else { return };
    // A forced apply of the server itself has no conflicts.
    if let Ok(object) = managed::on_apply(cx, &target, Some(&live), &config, MANAGER, true) {
        cx.put(&resource, &target.key(), object);
    }
}

/// Returns the warnings about the expressions of a policy.
fn warnings(registry: &Registry, spec: &Value) -> Vec<Value> {
    let kinds = kinds(registry, spec);
    let mut warnings = Vec::new();
    for (index, validation) in list(spec, "validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let text = validation[field].as_str().unwrap_or_default();
            let found: Vec<String> = kinds
                .iter()
                .filter_map(|(kind, version)| {
                    Some(format!("{kind}: {}\n", issues(registry, spec, version, text)?))
                })
                .collect();
            if !text.is_empty() && !found.is_empty() {
                warnings.push(json!({
                    "fieldRef": format!("spec.validations[{index}].{field}"),
                    "warning": found.join("\n"),
                }));
            }
        }
    }
    warnings
}

/// Returns the issues of an expression if objects are of this version of a kind.
fn issues(registry: &Registry, spec: &Value, version: &Version, text: &str) -> Option<String> {
    let params = param_version(registry, &spec["paramKind"]);
    let mut scope = Scope {
        own: None,
        object: Some(Type::of_objects(&version.schema)),
        params: params.map(|version| Type::of_objects(&version.schema)),
        has_params: !spec["paramKind"].is_null(),
        has_authorizer: true,
        variables: None,
    };
    for variable in list(spec, "variables") {
        let name = variable["name"].as_str().unwrap_or_default().to_owned();
        let text = variable["expression"].as_str().unwrap_or_default();
        scope.variables.get_or_insert_default();
        let found = Expression::check(text, &scope).unwrap_or(Type::Dyn);
        scope.variables.get_or_insert_default().insert(name, found);
    }
    Expression::check(text, &scope).err()
}

fn param_version<'a>(registry: &'a Registry, kind: &Value) -> Option<&'a Version> {
    let (group, version) = {
        let version = kind["apiVersion"].as_str()?;
        version.split_once('/').unwrap_or(("", version))
    };
    registry
        .find_kind(group, kind["kind"].as_str()?)?
        .version(version)
}

/// Returns the kinds that rules without wildcards select, in the order of their names.
fn kinds<'a>(registry: &'a Registry, spec: &Value) -> BTreeMap<String, &'a Version> {
    let mut found = BTreeMap::new();
    for rule in list(&spec["matchConstraints"], "resourceRules") {
        let texts = |key: &str| list(rule, key).iter().filter_map(Value::as_str);
        let has_wildcard = |key: &str| texts(key).any(|text| text.contains('*'));
        if has_wildcard("apiGroups") || has_wildcard("apiVersions") {
            continue;
        }
        let mut count = 0;
        for group in texts("apiGroups") {
            for plural in texts("resources").filter(|plural| !plural.contains(['*', '/'])) {
                let Some(resource) = registry.find(group, plural).map(Arc::as_ref) else {
                    continue;
                };
                for version in texts("apiVersions").filter_map(|name| resource.version(name)) {
                    if count == KINDS_MAX {
                        return found;
                    }
                    count += 1;
                    let name = format!("{group}/{}, Kind={}", version.name, resource.kind);
                    found.insert(name, version);
                }
            }
        }
    }
    found
}
