// SPDX-License-Identifier: Apache-2.0
//! Role based access control: roles and bindings as they are stored now.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Identity, authorize::Attributes};
use crate::{
    resource::at,
    state::Context,
    store::{Object, metadata_of},
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Written by `data/generate.py`.
static BOOTSTRAP: &str = include_str!("../../data/rbac.txt");

/// Makes the roles and bindings that the real server makes when it starts.
pub(crate) fn plant(cx: &mut Context<'_>) {
    for line in BOOTSTRAP.lines() {
        let Some((plural, json)) = line.split_once('\t') else {
            continue;
        };
        let object: Value = serde_json::from_str(json).expect("the generated policy is JSON");
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        cx.plant(GROUP, plural, "", &name, object);
    }
}

/// Why this is allowed; nothing if it is not.
pub(crate) fn allows(cx: &Context<'_>, identity: &Identity, attributes: &Attributes) -> Option<String> {
    if identity.groups().iter().any(|group| group == "system:masters") {
        return Some(String::new());
    }
    let cluster = cx
        .all(GROUP, "clusterrolebindings")
        .map(|binding| ("ClusterRoleBinding", binding.object()));
    let local = local_bindings(cx, &attributes.namespace).map(|binding| ("RoleBinding", binding));
    for (kind, binding) in cluster.chain(local) {
        let binding = &*binding;
        let Some(subject) = subject(binding, identity) else {
            continue;
        };
        let rules = rules(cx, binding);
        if !rules.iter().any(|rule| grants(rule, attributes)) {
            continue;
        }
        let text = |object: &Object, path: &[&str]| {
            at(object, path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let name = text(binding, &["metadata", "name"]);
        let name = if kind == "RoleBinding" {
            format!("{}/{}", name, attributes.namespace)
        } else {
            name
        };
        let role = format!(
            "{} {:?}",
            text(binding, &["roleRef", "kind"]),
            text(binding, &["roleRef", "name"])
        );
        return Some(format!("RBAC: allowed by {kind} {name:?} of {role} to {subject}"));
    }
    None
}

/// All rules that hold for somebody in a namespace.
pub(crate) fn rules_for(cx: &Context<'_>, identity: &Identity, namespace: &str) -> Vec<Value> {
    let mut found = Vec::new();
    if identity.groups().iter().any(|group| group == "system:masters") {
        found.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        found.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    let cluster = cx
        .all(GROUP, "clusterrolebindings")
        .map(|binding| binding.object());
    for binding in cluster.chain(local_bindings(cx, namespace)) {
        if subject(&binding, identity).is_some() {
            found.extend(rules(cx, &binding));
        }
    }
    found
}

/// The bindings of a namespace; there are none outside of namespaces.
fn local_bindings<'a>(
    cx: &'a Context<'_>,
    namespace: &'a str,
) -> impl Iterator<Item = Arc<Object>> + use<'a> {
    let bindings = cx.all(GROUP, "rolebindings").map(|binding| binding.object());
    bindings.filter(move |binding| {
        !namespace.is_empty()
            && metadata_of(binding).get("namespace").and_then(Value::as_str) == Some(namespace)
    })
}

/// How a binding names somebody; nothing if it does not.
fn subject(binding: &Object, identity: &Identity) -> Option<String> {
    let subjects = binding.get("subjects").and_then(Value::as_array)?;
    subjects.iter().find_map(|subject| {
        let text = |key: &str| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = text("name");
        match text("kind") {
            "User" => (name == identity.name()).then(|| format!("User {name:?}")),
            "Group" => identity
                .groups()
                .iter()
                .any(|group| group == name)
                .then(|| format!("Group {name:?}")),
            "ServiceAccount" => {
                let own = metadata_of(binding)
                    .get("namespace")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let namespace = if text("namespace").is_empty() {
                    own
                } else {
                    text("namespace")
                };
                (identity.name() == format!("system:serviceaccount:{namespace}:{name}"))
                    .then(|| format!("ServiceAccount {:?}", format!("{name}/{namespace}")))
            }
            _ => None,
        }
    })
}

/// The rules of the role that a binding refers to.
fn rules(cx: &Context<'_>, binding: &Object) -> Vec<Value> {
    let text = |path: &[&str]| {
        at(binding, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let name = text(&["roleRef", "name"]);
    let role = match text(&["roleRef", "kind"]).as_str() {
        "ClusterRole" => cx.find(GROUP, "clusterroles", &name),
        _ => cx.find(
            GROUP,
            "roles",
            &format!("{}/{name}", text(&["metadata", "namespace"])),
        ),
    };
    let Some(role) = role else { return Vec::new() };
    rules_of(cx, &role.object(), AGGREGATION_DEPTH)
}

/// How deep roles may aggregate others; the built-in ones go three levels deep.
const AGGREGATION_DEPTH: usize = 8;

/// The rules of a role, and of those that it aggregates.
fn rules_of(cx: &Context<'_>, role: &Object, depth: usize) -> Vec<Value> {
    let own = role
        .get("rules")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    if depth == 0 {
        return own;
    }
    own.into_iter().chain(aggregated(cx, role, depth - 1)).collect()
}

/// The rules of roles that an aggregating role selects by their labels.
fn aggregated(cx: &Context<'_>, role: &Object, depth: usize) -> Vec<Value> {
    let selectors = at(role, &["aggregationRule", "clusterRoleSelectors"]).and_then(Value::as_array);
    let mut found = Vec::new();
    for selector in selectors.into_iter().flatten() {
        let Some(wanted) = selector.get("matchLabels").and_then(Value::as_object) else {
            continue;
        };
        for other in cx.all(GROUP, "clusterroles") {
            let other = other.object();
            let labels = metadata_of(&other).get("labels");
            if wanted
                .iter()
                .all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
            {
                found.extend(rules_of(cx, &other, depth));
            }
        }
    }
    found
}

fn grants(rule: &Value, attributes: &Attributes) -> bool {
    let list = |key: &str| -> Vec<&str> {
        rule.get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let has = |key: &str, wanted: &str| list(key).iter().any(|known| *known == "*" || *known == wanted);
    if !has("verbs", &attributes.verb) {
        return false;
    }
    if let Some(path) = &attributes.path {
        return list("nonResourceURLs")
            .iter()
            .any(|known| match known.strip_suffix('*') {
                Some(prefix) => path.starts_with(prefix),
                None => known == path,
            });
    }
    let full = attributes.full_resource();
    let any_sub = format!("*/{}", attributes.subresource);
    let resource = list("resources").iter().any(|known| {
        *known == "*" || *known == full || !attributes.subresource.is_empty() && *known == any_sub
    });
    let names = list("resourceNames");
    has("apiGroups", &attributes.group)
        && resource
        && (names.is_empty() || names.contains(&attributes.name.as_str()))
}
