// SPDX-License-Identifier: Apache-2.0
//! Background work on CRDs.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{FINALIZER, condition, resource};
use crate::{
    background::{self, Work},
    handler::{
        Target,
        delete::{DeleteOptions, remove, set_finalizers},
        update::finalizers,
    },
    managed,
    resource::{Resource, at},
    state::Context,
    store::{Object, Stored, metadata_of},
};

/// Runs the next step that a CRD needs.
pub(crate) fn advance(cx: &mut Context<'_>, name: &str) {
    let Some(stored) = cx
        .find("apiextensions.k8s.io", "customresourcedefinitions", name)
        .cloned()
    else {
        withdraw(cx, name);
        return;
    };
    let object = &*stored.object();
    if accepted_names(cx, &stored) || established(cx, &stored) {
        return;
    }
    serve(cx, object);
    if metadata_of(object).contains_key("deletionTimestamp") && finalizers(object).contains(&FINALIZER) {
        clean_up(cx, &stored);
    }
}

fn definitions(cx: &Context<'_>) -> Arc<Resource> {
    Arc::clone(
        cx.state
            .registry
            .find("apiextensions.k8s.io", "customresourcedefinitions")
            .expect("definitions are a built-in kind"),
    )
}

fn write(cx: &mut Context<'_>, stored: &Stored, mut object: Object) {
    let resource = definitions(cx);
    let name = metadata_of(&object)
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let target = Target {
        resource: Arc::clone(&resource),
        version: 0,
        namespace: String::new(),
        name: name.clone(),
        subresource: "status".to_owned(),
    };
    managed::on_update(cx, &target, Some(&stored.object()), &mut object, "kube-apiserver");
    cx.put(&resource, &name, object);
}

fn set_condition(
    cx: &Context<'_>,
    object: &mut Object,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) {
    let now = cx.timestamp();
    let Some(Value::Object(fields)) = object.get_mut("status") else {
        return;
    };
    let conditions = fields.entry("conditions").or_insert_with(|| json!([]));
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else {
        return;
    };
    let new = json!({"type": kind, "status": status, "lastTransitionTime": now, "reason": reason, "message": message});
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(known) => {
            let since = if known["status"] == status {
                known["lastTransitionTime"].clone()
            } else {
                new["lastTransitionTime"].clone()
            };
            *known = new;
            known["lastTransitionTime"] = since;
        }
        None => conditions.push(new),
    }
}

/// Accepts the names of a CRD or reports the conflict; returns true if it wrote the CRD.
fn accepted_names(cx: &mut Context<'_>, stored: &Stored) -> bool {
    let object = &*stored.object();
    let (accepted, conflict) = name_conflict(cx, object);
    let mut new = object.clone();
    new["status"]["acceptedNames"] = accepted;
    let (status, reason, message) = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => ("False", *reason, message.as_str()),
    };
    set_condition(cx, &mut new, "NamesAccepted", status, reason, message);
    let installing = ("Installing", "the initial names have been accepted");
    let refused = ("NotAccepted", "not all names are accepted");
    let waits = match (condition(object, "Established"), conflict.is_none()) {
        (Some("True"), _) | (Some(_), false) => None,
        (_, true) => Some(installing),
        (None, false) => Some(refused),
    };
    if let Some((reason, message)) = waits {
        set_condition(cx, &mut new, "Established", "False", reason, message);
    }
    if new == *object {
        return false;
    }
    write(cx, stored, new);
    // The change may have freed names.
    requeue_refused(cx, &text_at(object, &["spec", "group"]));
    true
}

fn text_at(object: &Object, path: &[&str]) -> String {
    at(object, path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Queues the CRDs of a group whose names were not all accepted.
fn requeue_refused(cx: &mut Context<'_>, group: &str) {
    let refused: Vec<String> = cx
        .all("apiextensions.k8s.io", "customresourcedefinitions")
        .filter(|stored| {
            let object = stored.object();
            condition(&object, "NamesAccepted") == Some("False")
                && text_at(&object, &["spec", "group"]) == group
        })
        .map(|stored| stored.text("name"))
        .collect();
    for name in refused {
        background::push(cx, Work::Definition(name));
    }
}

/// Returns the names to accept for a CRD, and the conflict if it does not get all of them. A CRD keeps each accepted
/// name until the new one is accepted.
fn name_conflict(cx: &Context<'_>, object: &Object) -> (Value, Option<(&'static str, String)>) {
    let group = text_at(object, &["spec", "group"]);
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for other in cx.all("apiextensions.k8s.io", "customresourcedefinitions") {
        let other = other.object();
        if text_at(&other, &["spec", "group"]) != group {
            continue;
        }
        let names = at(&other, &["status", "acceptedNames"]);
        let names = names.cloned().unwrap_or_default();
        resources.extend(["plural", "singular"].map(|key| text_of(&names, key).to_owned()));
        resources.extend(short_names(&names).map(str::to_owned));
        kinds.extend(["kind", "listKind"].map(|key| text_of(&names, key).to_owned()));
    }
    let wanted = at(object, &["spec", "names"]).cloned().unwrap_or_default();
    let own = at(object, &["status", "acceptedNames"]);
    let own = own.cloned().unwrap_or_default();
    let mut accepted = own.clone();
    if !accepted.is_object() {
        accepted = json!({"plural": "", "kind": ""});
    }
    let mut conflict = None;
    let mut settle = |key: &str, reason: &'static str, taken: Vec<String>| {
        if let [first, rest @ ..] = &taken[..] {
            conflict = Some((reason, in_use(first, rest)));
            return;
        }
        match (wanted.get(key), accepted.as_object_mut()) {
            (Some(value), Some(accepted)) => drop(accepted.insert(key.to_owned(), value.clone())),
            (None, Some(accepted)) => drop(accepted.remove(key)),
            (_, None) => {}
        }
    };
    let taken = |key: &str, used: &BTreeSet<String>| -> Vec<String> {
        let name = text_of(&wanted, key);
        let is_taken = name != text_of(&own, key) && used.contains(name);
        is_taken.then(|| name.to_owned()).into_iter().collect()
    };
    settle("plural", "PluralConflict", taken("plural", &resources));
    settle("singular", "SingularConflict", taken("singular", &resources));
    let is_own = |name: &&str| short_names(&own).any(|own| own == *name);
    let taken_short = short_names(&wanted)
        .filter(|name| !is_own(name) && resources.contains(*name))
        .map(str::to_owned)
        .collect();
    settle("shortNames", "ShortNamesConflict", taken_short);
    settle("kind", "KindConflict", taken("kind", &kinds));
    settle("listKind", "ListKindConflict", taken("listKind", &kinds));
    settle("categories", "", Vec::new());
    (accepted, conflict)
}

fn text_of<'a>(names: &'a Value, key: &str) -> &'a str {
    names.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn short_names(names: &Value) -> impl Iterator<Item = &str> {
    let names = names.get("shortNames").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

/// Formats one name, or several in Go's format of error lists.
fn in_use(first: &str, rest: &[String]) -> String {
    if rest.is_empty() {
        return format!("{first:?} is already in use");
    }
    let all = std::iter::once(first).chain(rest.iter().map(String::as_str));
    let all: Vec<String> = all.map(|name| format!("{name:?} is already in use")).collect();
    format!("[{}]", all.join(", "))
}

/// Establishes a CRD whose names are accepted; returns true if it wrote the CRD.
fn established(cx: &mut Context<'_>, stored: &Stored) -> bool {
    let object = &*stored.object();
    if condition(object, "NamesAccepted") != Some("True") || condition(object, "Established") == Some("True")
    {
        return false;
    }
    if metadata_of(object).contains_key("deletionTimestamp") {
        return false;
    }
    let mut new = object.clone();
    set_condition(
        cx,
        &mut new,
        "Established",
        "True",
        "InitialNamesAccepted",
        "the initial names have been accepted",
    );
    write(cx, stored, new);
    true
}

/// Serves the kind by the current spec.
fn serve(cx: &mut Context<'_>, object: &Object) {
    if condition(object, "NamesAccepted") != Some("True") && condition(object, "Established") != Some("True")
    {
        return;
    }
    let text = |path: &[&str]| {
        at(object, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (group, plural) = (text(&["spec", "group"]), text(&["spec", "names", "plural"]));
    let known = cx.state.registry.find(&group, &plural).cloned();
    let terminating = metadata_of(object).contains_key("deletionTimestamp");
    let generation = metadata_of(object)
        .get("generation")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let uid = text(&["metadata", "uid"]);
    let served_as = format!("{uid}/{generation}");
    if let Some(known) = &known
        && let Some(custom) = &known.custom
        && cx.state.served_definitions.get(&custom.definition) == Some(&served_as)
    {
        if custom.terminating != terminating {
            // The kind and its watches stay; only creates are rejected from now on.
            let Some(mut new) = resource(cx.state, object) else {
                return;
            };
            new.epoch = known.epoch;
            new.floor = known.floor;
            if let Some(custom) = &mut new.custom {
                custom.edition = known.edition();
            }
            cx.state.registry.insert(new);
        }
        return;
    }
    if let Some(new) = resource(cx.state, object) {
        cx.state
            .served_definitions
            .insert(text(&["metadata", "name"]), served_as);
        crate::apiservice::ensure(cx, &new);
        let kind = new.kind.clone();
        cx.state.registry.insert(new);
        background::collect::served(cx, &group, &kind);
    }
}

/// Stops serving a kind whose CRD was removed.
fn withdraw(cx: &mut Context<'_>, name: &str) {
    let Some((plural, group)) = name.split_once('.') else {
        return;
    };
    requeue_refused(cx, group);
    if cx.state.served_definitions.remove(name).is_none() {
        return;
    }
    cx.state.registry.remove(group, plural);
    crate::apiservice::withdraw(cx, group);
}

/// Deletes all objects of a terminating CRD, and releases the CRD when none is left.
fn clean_up(cx: &mut Context<'_>, stored: &Stored) {
    let object = &*stored.object();
    let text = |path: &[&str]| {
        at(object, path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let resource = cx
        .state
        .registry
        .find(&text(&["spec", "group"]), &text(&["spec", "names", "plural"]))
        .cloned();
    let in_progress = "CustomResource deletion is in progress";
    if condition_reason(object, "Terminating").as_deref() == Some("InstanceDeletionPending") {
        let mut new = object.clone();
        set_condition(
            cx,
            &mut new,
            "Terminating",
            "True",
            "InstanceDeletionInProgress",
            in_progress,
        );
        write(cx, stored, new);
        return;
    }
    if let Some(resource) = resource {
        let instances: Vec<Arc<Stored>> = cx
            .state
            .store
            .all(resource.storage)
            .map(|(_, stored)| Arc::clone(stored))
            .collect();
        for instance in instances {
            if instance.is_deleting() {
                continue;
            }
            let target = Target {
                resource: Arc::clone(&resource),
                version: resource.strategy.storage_version,
                namespace: instance.text("namespace"),
                name: instance.text("name"),
                subresource: String::new(),
            };
            // An object that cannot be deleted now is retried when it changes.
            let _ = remove(cx, &target, &DeleteOptions::default());
        }
        if cx.state.store.len(resource.storage) > 0 {
            return;
        }
    }
    let name = metadata_of(object)
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let mut new = object.clone();
    set_condition(
        cx,
        &mut new,
        "Terminating",
        "False",
        "InstanceDeletionCompleted",
        "removed all instances",
    );
    let left: Vec<String> = finalizers(&new)
        .into_iter()
        .filter(|finalizer| *finalizer != FINALIZER)
        .map(str::to_owned)
        .collect();
    let gone = left.is_empty();
    let definitions = definitions(cx);
    if gone {
        cx.put(&definitions, &name, new);
        cx.remove(&definitions, &name);
    } else {
        set_finalizers(&mut new, &left);
        write(cx, stored, new);
    }
}

fn condition_reason(object: &Object, kind: &str) -> Option<String> {
    let conditions = at(object, &["status", "conditions"])?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    found.get("reason")?.as_str().map(str::to_owned)
}

/// Adds the finalizer and the condition `Terminating` when a client deletes a CRD.
pub(crate) fn on_deletion(now: &Value, object: &mut Object) {
    let mut left: Vec<String> = finalizers(object).into_iter().map(str::to_owned).collect();
    if !left.iter().any(|finalizer| finalizer == FINALIZER) {
        left.push(FINALIZER.to_owned());
    }
    set_finalizers(object, &left);
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let pending = json!({"type": "Terminating", "status": "True", "lastTransitionTime": now, "reason": "InstanceDeletionPending", "message": message});
    if let Some(Value::Object(status)) = object.get_mut("status") {
        let conditions = status.entry("conditions").or_insert_with(|| json!([]));
        if conditions.is_null() {
            *conditions = json!([]);
        }
        if let Value::Array(conditions) = conditions {
            conditions.retain(|condition| condition["type"] != "Terminating");
            conditions.push(pending);
        }
    }
}
