// SPDX-License-Identifier: Apache-2.0
//! What the server does about a definition in the background.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FINALIZER, condition, resource};
use crate::{
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

/// Does the next thing that a definition needs.
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

/// Accepts the names, or says why not; true if something was written.
fn accepted_names(cx: &mut Context<'_>, stored: &Stored) -> bool {
    let object = &*stored.object();
    let names = at(object, &["spec", "names"]).cloned().unwrap_or_default();
    let conflict = name_conflict(cx, object, &names);
    let mut new = object.clone();
    match &conflict {
        None => {
            new["status"]["acceptedNames"] = names;
            set_condition(
                cx,
                &mut new,
                "NamesAccepted",
                "True",
                "NoConflicts",
                "no conflicts found",
            );
            if condition(object, "Established").is_none() {
                set_condition(
                    cx,
                    &mut new,
                    "Established",
                    "False",
                    "Installing",
                    "the initial names have been accepted",
                );
            }
        }
        Some((reason, message)) => {
            new["status"]["acceptedNames"] = free_names(cx, object, &names);
            set_condition(cx, &mut new, "NamesAccepted", "False", reason, message);
            if condition(object, "Established").is_none() {
                set_condition(
                    cx,
                    &mut new,
                    "Established",
                    "False",
                    "NotAccepted",
                    "not all names are accepted",
                );
            }
        }
    }
    if new == *object {
        return false;
    }
    write(cx, stored, new);
    true
}

/// The names that nobody else holds.
fn free_names(cx: &Context<'_>, object: &Object, names: &Value) -> Value {
    let mut free = json!({"plural": "", "kind": ""});
    for key in [
        "plural",
        "singular",
        "kind",
        "listKind",
        "shortNames",
        "categories",
    ] {
        let Some(value) = names.get(key) else { continue };
        if key == "categories" || name_conflict(cx, object, &json!({key: value})).is_none() {
            free[key] = value.clone();
        }
    }
    free
}

/// The first of a definition's names that another one of its group holds.
fn name_conflict(cx: &Context<'_>, object: &Object, names: &Value) -> Option<(&'static str, String)> {
    let own = metadata_of(object)
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let group = at(object, &["spec", "group"])
        .and_then(Value::as_str)
        .unwrap_or_default();
    let text = |key: &str| names.get(key).and_then(Value::as_str).unwrap_or_default();
    let others = cx
        .state
        .registry
        .all()
        .iter()
        .filter(|resource| resource.group == group);
    let others = others.filter(|resource| {
        resource
            .custom
            .as_ref()
            .is_none_or(|custom| custom.definition != own)
    });
    for other in others {
        let resources: Vec<&str> = [other.plural.as_str(), other.singular.as_str()]
            .into_iter()
            .chain(other.short_names.iter().map(String::as_str))
            .collect();
        for (key, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
            if resources.contains(&text(key)) {
                return Some((reason, format!("{:?} is already in use", text(key))));
            }
        }
        let short = names
            .get("shortNames")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        if let Some(taken) = short.into_iter().find(|name| resources.contains(name)) {
            return Some(("ShortNamesConflict", format!("{taken:?} is already in use")));
        }
        let kinds = [other.kind.as_str(), other.list_kind.as_str()];
        for (key, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
            if kinds.contains(&text(key)) {
                return Some((reason, format!("{:?} is already in use", text(key))));
            }
        }
    }
    None
}

/// Establishes what is accepted; true if something was written.
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

/// Serves the kind in its present form.
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
            // Same kind, same watches; only creates are refused from now on.
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
        cx.state.registry.insert(new);
    }
}

/// Stops serving a kind whose definition is gone.
fn withdraw(cx: &mut Context<'_>, name: &str) {
    let Some((plural, group)) = name.split_once('.') else {
        return;
    };
    if cx.state.served_definitions.remove(name).is_none() {
        return;
    }
    cx.state.registry.remove(group, plural);
    crate::apiservice::withdraw(cx, group);
}

/// Deletes all objects of a kind that goes away, and lets its definition go when none is left.
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
            // What cannot be deleted now is looked at again when it changes.
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

/// Marks a definition that a client deletes.
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
