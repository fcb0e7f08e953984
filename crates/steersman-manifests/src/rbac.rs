// SPDX-License-Identifier: Apache-2.0
//! Service account, roles and bindings.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use steersman_core::{Permission, PermissionPlace};

use crate::{Operator, target::Target};

const API_GROUP: &str = "rbac.authorization.k8s.io";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// Returns the service account, and the roles with their bindings.
pub(crate) fn objects(operator: &Operator, target: &Target<'_>) -> Vec<Value> {
    let mut objects = vec![account(operator, target)];
    objects.extend(own(operator, target));
    // A Helm chart decides at installation where the operator works: `helm.rs` adds the other roles.
    if !target.is_helm() {
        let namespaces = &target.values().watch_namespaces;
        objects.extend(cluster_wide(operator, target, namespaces.is_empty()));
        for namespace in namespaces {
            objects.extend(watched(operator, target, &json!(namespace)));
        }
    }
    objects
}

fn account(operator: &Operator, target: &Target<'_>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": operator.metadata(&operator.name, target),
    })
}

/// Returns the role in the namespace of the operator.
fn own(operator: &Operator, target: &Target<'_>) -> Vec<Value> {
    let name = format!("{}-own", operator.name);
    let rules = rules(operator, |place| place == PermissionPlace::Own);
    role(operator, target, &name, &target.namespace(), &rules)
}

/// Returns the role in a namespace that the operator watches.
pub(crate) fn watched(operator: &Operator, target: &Target<'_>, namespace: &Value) -> Vec<Value> {
    let rules = rules(operator, |place| place == PermissionPlace::Watched);
    role(operator, target, &operator.name, namespace, &rules)
}

/// Returns the cluster role: for cluster-scoped resources, and for all others if the operator watches all namespaces.
pub(crate) fn cluster_wide(operator: &Operator, target: &Target<'_>, watches_all: bool) -> Vec<Value> {
    let rules = rules(operator, |place| match place {
        PermissionPlace::Cluster => true,
        PermissionPlace::Watched => watches_all,
        _ => false,
    });
    if rules.is_empty() {
        return Vec::new();
    }
    let metadata = operator.cluster_metadata(&operator.name);
    vec![
        json!({"apiVersion": API_VERSION, "kind": "ClusterRole", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": API_VERSION,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": API_GROUP, "kind": "ClusterRole", "name": operator.name},
            "subjects": subjects(operator, target),
        }),
    ]
}

fn role(
    operator: &Operator,
    target: &Target<'_>,
    name: &str,
    namespace: &Value,
    rules: &[Value],
) -> Vec<Value> {
    if rules.is_empty() {
        return Vec::new();
    }
    let metadata = json!({"name": name, "namespace": namespace, "labels": operator.labels()});
    vec![
        json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": API_VERSION,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": API_GROUP, "kind": "Role", "name": name},
            "subjects": subjects(operator, target),
        }),
    ]
}

fn subjects(operator: &Operator, target: &Target<'_>) -> Value {
    json!([{"kind": "ServiceAccount", "name": operator.name, "namespace": target.namespace()}])
}

/// Group, resource and name.
type Subject<'p> = (&'p str, &'p str, Option<&'p str>);

/// Group, name and verbs that several resources share.
type Shared<'p> = (&'p str, Option<&'p str>, BTreeSet<&'p str>);

/// Returns the rules of the permissions in some places. Resources of a group with the same verbs share a rule.
fn rules(operator: &Operator, is_meant: impl Fn(PermissionPlace) -> bool) -> Vec<Value> {
    let mut verbs: BTreeMap<Subject<'_>, BTreeSet<&str>> = BTreeMap::new();
    let meant = |permission: &&Permission| is_meant(permission.needed_in());
    for permission in operator.permissions.iter().filter(meant) {
        let add = |verbs: &mut BTreeMap<_, BTreeSet<_>>, name, verb| {
            let subject: Subject<'_> = (permission.group(), permission.resource(), name);
            verbs.entry(subject).or_default().insert(verb);
        };
        for (verb, _) in permission.each_verb() {
            // The server does not know the name of an object that is being created.
            let name = permission.name().filter(|_| verb != "create");
            add(&mut verbs, name, verb);
        }
    }
    let mut rules: BTreeMap<Shared<'_>, Vec<&str>> = BTreeMap::new();
    for ((group, resource, name), verbs) in verbs {
        rules.entry((group, name, verbs)).or_default().push(resource);
    }
    let rules = rules.into_iter().map(|((group, name, verbs), resources)| {
        let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        if let Some(name) = name {
            rule["resourceNames"] = json!([name]);
        }
        rule
    });
    rules.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Values;

    fn operator() -> Operator {
        let needed_by = "controller `web`";
        Operator::new("web").permissions([
            Permission::new("", "configmaps", needed_by).verbs(["list", "watch"]),
            Permission::new("", "secrets", needed_by).verbs(["watch", "list"]),
            Permission::new("", "configmaps", "another").verbs(["list"]),
            Permission::new("", "nodes", needed_by)
                .verbs(["get"])
                .place(PermissionPlace::Cluster),
            Permission::new("coordination.k8s.io", "leases", "election")
                .verbs(["create", "get"])
                .named("web")
                .place(PermissionPlace::Own),
        ])
    }

    fn kinds(objects: &[Value]) -> Vec<(&str, Option<&str>)> {
        objects
            .iter()
            .map(|object| {
                let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
                (object["kind"].as_str().unwrap_or_default(), namespace)
            })
            .collect()
    }

    #[test]
    fn guarantee_2_rules_contain_the_declared_verbs_and_nothing_else() {
        let values = Values::default();
        let objects = operator().rbac_objects("system", &values);
        assert_eq!(
            kinds(&objects),
            [
                ("ServiceAccount", Some("system")),
                ("Role", Some("system")),
                ("RoleBinding", Some("system")),
                ("ClusterRole", None),
                ("ClusterRoleBinding", None),
            ]
        );
        assert_eq!(
            objects[1]["rules"],
            json!([
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {
                    "apiGroups": ["coordination.k8s.io"], "resourceNames": ["web"], "resources": ["leases"],
                    "verbs": ["get"],
                },
            ])
        );
        assert_eq!(
            objects[3]["rules"],
            json!([
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["list", "watch"]},
            ])
        );
    }

    #[test]
    fn guarantee_2_watched_namespaces_have_roles_of_their_own() {
        let values = Values {
            watch_namespaces: vec!["a".to_owned(), "b".to_owned()],
            ..Values::default()
        };
        let objects = operator().rbac_objects("system", &values);
        assert_eq!(
            kinds(&objects)[3..],
            [
                ("ClusterRole", None),
                ("ClusterRoleBinding", None),
                ("Role", Some("a")),
                ("RoleBinding", Some("a")),
                ("Role", Some("b")),
                ("RoleBinding", Some("b")),
            ]
        );
        assert_eq!(
            objects[3]["rules"],
            json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}])
        );
        assert_eq!(objects[6]["subjects"][0]["namespace"], "system");
    }
}
