// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `ResourceQuota`, and the controller that counts usage.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{forbidden, usage};
use crate::{
    handler::Target,
    managed,
    quantity::amount::{Amounts, add, amounts},
    resource::{Resource, at},
    state::Context,
    status::Result,
    store::{Object, Stored},
};

/// Resources that each container must specify if a quota limits them.
const NAMED_BY_CONTAINERS: [&str; 6] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
];

/// The quotas that a write would charge, with their new usage.
pub(crate) type Charges = Vec<(Arc<Stored>, Amounts)>;

/// Returns true if quotas count such a write.
fn is_counted(target: &Target, is_new: bool) -> bool {
    let resource = &target.resource;
    match target.subresource.as_str() {
        "" => is_new || resource.is("", "services") || resource.is("", "persistentvolumeclaims"),
        "resize" => resource.is("", "pods"),
        _ => false,
    }
}

/// Checks that a write stays within the quotas of its namespace.
pub(crate) fn check(
    cx: &Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
) -> Result<Charges> {
    let mut charges = Charges::new();
    if !target.resource.namespaced || !is_counted(target, old.is_none()) {
        return Ok(charges);
    }
    let resource = &target.resource;
    for quota in cx.in_namespace("", "resourcequotas", &target.namespace) {
        let fields = quota.object();
        let spec = fields.get("spec").cloned().unwrap_or_default();
        if !usage::is_in_scopes(&spec, resource, object) {
            continue;
        }
        let [hard, used] = ["hard", "used"].map(|field| {
            let list = at(&fields, &["status", field]);
            list.map(amounts).unwrap_or_default()
        });
        let mut wanted = usage::of(resource, object);
        let name = quota.text("name");
        // A limited resource counts if the kind can use it, even if this object uses none of it.
        let restricted: Vec<&String> = hard.keys().filter(|known| can_use(resource, known)).collect();
        if restricted.is_empty() {
            continue;
        }
        if let Some(missing) = unnamed(resource, object, &restricted) {
            return Err(forbidden(
                target,
                &format!("failed quota: {name}: must specify {missing}"),
            ));
        }
        if restricted.iter().any(|known| !used.contains_key(*known)) {
            let names: Vec<&str> = restricted.iter().map(|known| known.as_str()).collect();
            let names = names.join(",");
            let why = format!("status unknown for quota: {name}, resources: {names}");
            return Err(forbidden(target, &why));
        }
        if let Some(old) = old.filter(|old| usage::is_in_scopes(&spec, resource, old)) {
            let before = usage::of(resource, old);
            for (known, amount) in &mut wanted {
                *amount = amount.minus(before.get(known).copied().unwrap_or_default());
            }
        }
        wanted.retain(|known, amount| hard.contains_key(known) && !amount.is_zero());
        if wanted.is_empty() {
            continue;
        }
        let mut sum = used.clone();
        add(&mut sum, &wanted);
        let exceeded: Vec<&String> = wanted.keys().filter(|known| sum[*known] > hard[*known]).collect();
        if !exceeded.is_empty() {
            let list = |amounts: &Amounts| {
                let parts = exceeded.iter().map(|known| {
                    let amount = amounts.get(*known).copied().unwrap_or_default();
                    format!("{known}={amount}")
                });
                parts.collect::<Vec<_>>().join(",")
            };
            let why = format!(
                "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
                list(&wanted),
                list(&used),
                list(&hard)
            );
            return Err(forbidden(target, &why));
        }
        charges.push((Arc::clone(quota), sum));
    }
    Ok(charges)
}

/// Returns true if the kind can use the resource that a quota limits under this name.
fn can_use(resource: &Resource, name: &str) -> bool {
    let group = if resource.group.is_empty() {
        String::new()
    } else {
        format!(".{}", resource.group)
    };
    if name == format!("count/{}{group}", resource.plural) {
        return true;
    }
    if !resource.group.is_empty() || name.starts_with("count/") {
        return false;
    }
    match resource.plural.as_str() {
        plural @ ("configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets") => name == plural,
        "services" => name == "services" || name.starts_with("services."),
        "persistentvolumeclaims" => {
            let last = name.rsplit('/').next().unwrap_or_default();
            let is_of_class = name == last || name.contains(".storageclass.storage.k8s.io/");
            is_of_class && matches!(last, "persistentvolumeclaims" | "requests.storage")
        }
        "pods" => {
            let plain = name.strip_prefix("requests.").unwrap_or(name);
            let is_compute = matches!(plain, "cpu" | "memory" | "ephemeral-storage");
            let is_limit = matches!(name, "limits.cpu" | "limits.memory" | "limits.ephemeral-storage");
            let is_extended = plain != name && plain.contains('/') && !plain.contains("kubernetes.io/");
            name == "pods" || is_compute || is_limit || is_extended || plain.starts_with("hugepages-")
        }
        _ => false,
    }
}

/// Returns the resources that containers of a Pod must specify and do not.
fn unnamed(resource: &Resource, object: &Object, restricted: &[&String]) -> Option<String> {
    let of_whole_pod = |field: &str| {
        let amounts = at(object, &["spec", "resources", field]).and_then(Value::as_object);
        amounts.is_some_and(|amounts| !amounts.is_empty())
    };
    if !resource.is("", "pods") || of_whole_pod("requests") || of_whole_pod("limits") {
        return None;
    }
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for container in usage::containers(object) {
        let resources = &container["resources"];
        let named = usage::compute(&amounts(&resources["requests"]), &amounts(&resources["limits"]));
        let needed = restricted.iter().map(|known| known.as_str());
        for known in needed.filter(|known| NAMED_BY_CONTAINERS.contains(known)) {
            if !named.contains_key(known) {
                let name = container["name"].as_str().unwrap_or_default();
                missing.entry(known).or_default().push(name.to_owned());
            }
        }
    }
    let parts = missing.iter_mut().map(|(known, containers)| {
        containers.sort_unstable();
        format!("{known} for: {}", containers.join(","))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Adds the usage of a write to the status of quotas.
pub(crate) fn charge(cx: &mut Context<'_>, charges: Charges) {
    for (quota, used) in charges {
        let used: Object = used
            .into_iter()
            .map(|(name, amount)| (name, Value::from(amount.to_string())))
            .collect();
        put_status(cx, &quota, None, used, "kube-apiserver");
    }
}

fn put_status(cx: &mut Context<'_>, quota: &Stored, hard: Option<Value>, used: Object, manager: &str) {
    let Some(resource) = cx.state.registry.find("", "resourcequotas").cloned() else {
        return;
    };
    let before = quota.object();
    let mut object = Object::clone(&before);
    let status = object.entry("status").or_insert_with(|| json!({}));
    if let Some(hard) = hard {
        status["hard"] = hard;
    }
    status["used"] = Value::Object(used);
    if object == *before {
        return;
    }
    let target = Target {
        subresource: "status".to_owned(),
        ..Target::of(&resource, quota)
    };
    managed::on_update(cx, &target, Some(&before), &mut object, manager);
    cx.put(&resource, &target.key(), object);
}

/// Recounts the usage of all quotas of a namespace, as the controller manager does.
pub(crate) fn recount(cx: &mut Context<'_>, namespace: &str) {
    let quotas: Vec<Arc<Stored>> = cx
        .in_namespace("", "resourcequotas", namespace)
        .cloned()
        .collect();
    for quota in quotas {
        let spec = quota.object().get("spec").cloned().unwrap_or_default();
        let hard = amounts(&spec["hard"]);
        let mut used: Amounts = hard
            .keys()
            .map(|name| (name.clone(), Default::default()))
            .collect();
        let kinds = cx.state.registry.all().iter();
        let kinds = kinds.filter(|kind| kind.namespaced && hard.keys().any(|name| can_use(kind, name)));
        for kind in kinds {
            for stored in cx.state.store.within(kind.storage, namespace) {
                let object = stored.object();
                if !usage::is_in_scopes(&spec, kind, &object) {
                    continue;
                }
                let mut of_object = usage::of(kind, &object);
                let is_over = kind.is("", "pods") && usage::is_overdue(&object, cx.now);
                of_object
                    .retain(|name, _| hard.contains_key(name) && (!is_over || name.starts_with("count/")));
                add(&mut used, &of_object);
            }
        }
        let used = used.into_iter();
        let used = used.map(|(name, amount)| (name, Value::from(amount.to_string())));
        let used: Object = used.collect();
        let hard = (!spec["hard"].is_null()).then(|| spec["hard"].clone());
        put_status(cx, &quota, hard, used, "kube-controller-manager");
    }
}
