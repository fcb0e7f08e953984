// SPDX-License-Identifier: Apache-2.0
//! Field ownership: `metadata.managedFields` and server-side apply.
//!
//! # Guarantees
//! 1. A write other than an apply takes ownership of every field that it changes, and never conflicts.
//! 2. An apply owns exactly the fields of its configuration. It conflicts with every other manager of a field whose
//!    value it would change; equal values are shared.
//! 3. A field that an applier no longer sends, and that no other manager owns, is removed.
//! 4. A write that changes only timestamps of managers changes nothing.

mod entries;
pub(crate) mod scale;

use std::{sync::LazyLock, time::SystemTime};

use serde_json::{Value, json};

use crate::{
    apply::{self, Comparison, FieldSet},
    clock::rfc3339,
    conversion,
    handler::Target,
    schema::{Schema, definitions, go},
    state::Context,
    status::{Failure, Result},
    store::{Object, metadata_of},
};

use entries::{Manager, Managers, Operation};

/// Maximum number of update managers; the oldest are merged beyond that.
const UPDATE_MANAGERS: usize = 10;

/// An object in the version of a request, with its schema.
struct Typed<'a> {
    schema: &'a Schema,
    value: Value,
}

impl<'a> Typed<'a> {
    fn new(target: &'a Target, version: usize, object: &Object) -> Self {
        let mut object = object.clone();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        if target.resource.custom.is_none() {
            conversion::from_storage(&target.resource, version, &mut object);
        }
        Self {
            schema: root(target, version),
            value: Value::Object(object),
        }
    }

    /// Returns the empty object of the real server: a zero Go struct, or no fields for a custom resource.
    fn empty(target: &'a Target) -> Self {
        let schema = root(target, target.version);
        let value = if target.resource.custom.is_some() {
            json!({})
        } else {
            go::zero(schema)
        };
        Self { schema, value }
    }

    fn compare(&self, new: &Self) -> Comparison {
        apply::compare(self.schema, &self.value, &new.value)
    }
}

/// Returns the schema of whole objects, including the common metadata.
fn root(target: &Target, version: usize) -> &Schema {
    &target.resource.versions[version].schema
}

/// Updates the managed fields for a create, update or patch.
pub(crate) fn on_update(
    cx: &Context<'_>,
    target: &Target,
    live: Option<&Object>,
    new: &mut Object,
    manager: &str,
) {
    let sent = take(new);
    let own = live
        .map(|live| {
            metadata_of(live)
                .get("managedFields")
                .cloned()
                .unwrap_or(Value::Null)
        })
        .unwrap_or_default();
    let mut managers = match sent {
        Some(sent) if target.subresource.is_empty() && is_reset(&sent) => Managers::default(),
        Some(sent) if target.subresource.is_empty() => match Managers::decode(&sent) {
            Some(managers) if !managers.is_empty() => managers,
            _ => Managers::decode(&own).unwrap_or_default(),
        },
        _ => Managers::decode(&own).unwrap_or_default(),
    };
    // An object without managed fields stays so until an apply.
    if live.is_none() || !managers.is_empty() {
        let before = live.map_or_else(
            || Typed::empty(target),
            |live| Typed::new(target, target.version, live),
        );
        let after = Typed::new(target, target.version, new);
        let actor = Manager {
            name: if manager.is_empty() {
                "unknown".to_owned()
            } else {
                manager.to_owned()
            },
            operation: Operation::Update,
            api_version: target.api_version(),
            subresource: target.subresource.clone(),
        };
        update(target, &mut managers, &before, &after, actor, &rfc3339(cx.now));
        managers.cap(UPDATE_MANAGERS);
    }
    put(new, managers.encode());
}

fn update(
    target: &Target,
    managers: &mut Managers,
    before: &Typed<'_>,
    after: &Typed<'_>,
    actor: Manager,
    now: &str,
) {
    let comparison = before.compare(after).outside(&reset_fields(target));
    let gained = comparison.modified.union(&comparison.added);
    disown(target, managers, before, after, &comparison, None);
    let gained = gained.difference(stripped());
    if !gained.is_empty() {
        managers.extend(actor, &gained, now);
    }
}

/// Removes changed and deleted fields from all managers except `actor`; returns the changed fields that each manager
/// lost.
fn disown(
    target: &Target,
    managers: &mut Managers,
    before: &Typed<'_>,
    after: &Typed<'_>,
    comparison: &Comparison,
    actor: Option<&Manager>,
) -> Vec<(Manager, FieldSet)> {
    let mut conflicts = Vec::new();
    let api_version = target.api_version();
    managers.retain(|manager, version, set| {
        if Some(manager) == actor {
            return true;
        }
        let other;
        let comparison = if version == api_version {
            comparison
        } else {
            match comparison_at(target, version, before, after) {
                Some(found) => {
                    other = found;
                    &other
                }
                // A manager of a version that no longer exists is removed.
                None => return false,
            }
        };
        let lost = set.intersection(&comparison.modified.union(&comparison.added));
        if !lost.is_empty() {
            conflicts.push((manager.clone(), lost.clone()));
        }
        *set = set.difference(&lost).difference(&comparison.removed);
        !set.is_empty()
    });
    conflicts
}

fn comparison_at(
    target: &Target,
    api_version: &str,
    before: &Typed<'_>,
    after: &Typed<'_>,
) -> Option<Comparison> {
    let name = api_version.rsplit('/').next()?;
    let index = target
        .resource
        .versions
        .iter()
        .position(|version| version.name == name)?;
    let schema = root(target, index);
    Some(apply::compare(schema, &before.value, &after.value).outside(&reset_fields(target)))
}

/// Returns the managed fields of a new object that is never stored.
pub(crate) fn of_new(
    definition: &str,
    value: &Value,
    manager: &str,
    api_version: &str,
    subresource: &str,
    now: SystemTime,
) -> Option<Value> {
    let set = apply::fields(definitions::find(definition), value).ok()?;
    let mut managers = Managers::default();
    let manager = Manager {
        name: manager.to_owned(),
        operation: Operation::Update,
        api_version: api_version.to_owned(),
        subresource: subresource.to_owned(),
    };
    managers.extend(manager, &set, &rfc3339(now));
    managers.encode()
}

/// Applies a configuration to an object, or creates the object if it does not exist.
///
/// # Errors
/// Returns 409 with all conflicts; 500 for a configuration that does not match its schema.
pub(crate) fn on_apply(
    cx: &Context<'_>,
    target: &Target,
    live: Option<&Object>,
    config: &Object,
    manager: &str,
    force: bool,
) -> Result<Object> {
    let own = live.and_then(|live| metadata_of(live).get("managedFields"));
    let mut managers = own.and_then(Managers::decode).unwrap_or_default();
    let now = rfc3339(cx.now);
    let before = live.map_or_else(
        || Typed::empty(target),
        |live| Typed::new(target, target.version, live),
    );
    let schema = before.schema;
    let actor = Manager {
        name: manager.to_owned(),
        operation: Operation::Apply,
        api_version: String::new(),
        subresource: target.subresource.clone(),
    };
    if managers.is_empty() && live.is_some() {
        let first = Manager {
            name: "before-first-apply".to_owned(),
            operation: Operation::Update,
            api_version: target.api_version(),
            ..actor.clone()
        };
        update(target, &mut managers, &Typed::empty(target), &before, first, &now);
    }
    let namespace = metadata_of(config)
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let name = metadata_of(config)
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let config = Value::Object(config.clone());
    let failed = |error: String| {
        let kind = format!(
            "{}/{}, Kind={}",
            target.resource.group,
            target.version().name,
            target.resource.kind
        );
        Failure::unclassified(format!(
            "failed to create typed patch object ({namespace}/{name}; {kind}): {error}"
        ))
    };
    apply::check(schema, &config).map_err(failed)?;
    let merged = apply::merge(schema, Some(&before.value), Some(&config))
        .map_err(failed)?
        .unwrap_or_else(|| json!({}));
    let set = apply::fields(schema, &config)
        .map_err(failed)?
        .outside(&reset_fields(target));
    let last = managers.replace(&actor, &target.api_version(), set);
    let merged = match last {
        Some(last) if !last.is_empty() => prune(schema, &merged, &managers, &last),
        _ => merged,
    };
    let after = Typed {
        schema,
        value: merged,
    };
    let comparison = before.compare(&after).outside(&reset_fields(target));
    let conflicts = disown(target, &mut managers, &before, &after, &comparison, Some(&actor));
    if !force && !conflicts.is_empty() {
        // kubectl already owns the fields that it set by client-side apply.
        let allowed = live
            .filter(|_| manager == "kubectl")
            .and_then(|live| last_applied(live, &before))
            .unwrap_or_default();
        let left: Vec<(Manager, FieldSet)> = conflicts
            .into_iter()
            .map(|(manager, set)| (manager, set.difference(&allowed)))
            .filter(|(_, set)| !set.is_empty())
            .collect();
        if !left.is_empty() {
            return Err(conflict(&left));
        }
    }
    let changed = after.value != before.value;
    managers.strip(&actor, stripped());
    if changed {
        managers.stamp(&actor, &now);
    }
    let Value::Object(mut object) = after.value else {
        return Err(Failure::unclassified("an apply must give an object"));
    };
    put(&mut object, managers.encode());
    if manager == "kubectl" {
        refresh_last_applied(target, &mut object, config);
    }
    Ok(object)
}

/// Annotation that contains the last configuration of client-side apply.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum size of all annotations of an object.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Updates the annotation of client-side apply when kubectl uses server-side apply, so that a later client-side apply
/// knows which fields to remove. An object without the annotation does not get one.
fn refresh_last_applied(target: &Target, object: &mut Object, config: Value) {
    let Some(annotations) = object
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations")?.as_object_mut())
    else {
        return;
    };
    let is_filled = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    if !annotations.get(LAST_APPLIED).is_some_and(is_filled) {
        return;
    }
    let Value::Object(mut config) = config else {
        return;
    };
    config.insert("apiVersion".to_owned(), Value::from(target.api_version()));
    config.insert("kind".to_owned(), Value::from(target.resource.kind.clone()));
    if let Some(Value::Object(given)) = config
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations"))
    {
        given.remove(LAST_APPLIED);
    }
    // Escapes as Go's encoder does.
    let text = crate::json::escape_html(&Value::Object(config).to_string());
    annotations.insert(LAST_APPLIED.to_owned(), Value::from(text + "\n"));
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(size).sum::<usize>() > ANNOTATIONS_BYTES_MAX {
        annotations.remove(LAST_APPLIED);
    }
}

/// Returns the fields that kubectl's last client-side apply set and whose values have not changed since.
fn last_applied(live: &Object, before: &Typed<'_>) -> Option<FieldSet> {
    let annotations = metadata_of(live).get("annotations")?;
    let text = annotations.get(LAST_APPLIED)?.as_str()?;
    let mut config: Object = serde_json::from_str(text).ok()?;
    config.remove("apiVersion");
    config.remove("kind");
    let config = Value::Object(config);
    let set = apply::fields(before.schema, &config).ok()?;
    let comparison = apply::compare(before.schema, &config, &before.value);
    let changed = comparison
        .modified
        .union(&comparison.added)
        .union(&comparison.removed);
    Some(set.difference(&changed))
}

/// Removes fields that were applied before, are not applied now, and have no other owner.
fn prune(schema: &Schema, merged: &Value, managers: &Managers, last: &FieldSet) -> Value {
    let remove =
        |value: &Value, set: &FieldSet| apply::remove(schema, value, set).unwrap_or_else(|| json!({}));
    let named = |set: &FieldSet| apply::name_members(schema, set);
    // This cannot fail: the configuration was merged, and the live object results from an earlier merge.
    let all = |value: &Value| apply::fields(schema, value).unwrap_or_default();
    let pruned = remove(merged, &named(last));
    let (merged_set, owned) = (named(&all(merged)), managers.all());
    let pruned = remove(
        merged,
        &merged_set.difference(&named(&all(&pruned)).union(&named(&owned))),
    );
    let gone = merged_set
        .difference(&named(&all(&pruned)))
        .intersection(&named(last));
    remove(merged, &gone)
}

fn conflict(conflicts: &[(Manager, FieldSet)]) -> Failure {
    let mut lines = Vec::new();
    let mut causes = Vec::new();
    for (manager, set) in conflicts {
        let who = manager.describe();
        lines.push(format!("conflicts with {who}:"));
        for path in set.paths() {
            causes.push(json!({"reason": "FieldManagerConflict", "message": format!("conflict with {who}"), "field": path}));
            lines.push(format!("- {path}"));
        }
    }
    let message = match &causes[..] {
        [one] => {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            format!(
                "Apply failed with 1 conflict: {}: {}",
                text("message"),
                text("field")
            )
        }
        many => format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n")),
    };
    Failure::apply_conflict(message, causes)
}

/// Returns the fields that the endpoint of a request does not write and therefore does not own.
fn reset_fields(target: &Target) -> FieldSet {
    let custom = target.resource.custom.is_some();
    match target.subresource.as_str() {
        "" if target.version().has_status() => FieldSet::of(&[&["status"]]),
        "status" if custom => FieldSet::of(&[&["metadata"], &["spec"]]),
        "status" if target.resource.is("apps", "deployments") => {
            FieldSet::of(&[&["spec"], &["metadata", "labels"]])
        }
        "status" => FieldSet::of(&[&["spec"]]),
        _ => FieldSet::default(),
    }
}

/// Returns the metadata fields that no manager owns.
fn stripped() -> &'static FieldSet {
    static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
        let of_metadata = [
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        ];
        let of_metadata = FieldSet::of(
            &of_metadata
                .map(|field| ["metadata", field])
                .each_ref()
                .map(|path| &path[..]),
        );
        of_metadata.union(&FieldSet::of(&[&["apiVersion"], &["kind"], &["metadata"]]))
    });
    &STRIPPED
}

/// Restores the old timestamps of managers if nothing else changed.
pub(crate) fn ignore_timestamps(old: &Object, new: &mut Object) {
    let timeless = |object: &Object| {
        let mut entries = metadata_of(object)
            .get("managedFields")
            .cloned()
            .unwrap_or_default();
        for entry in entries.as_array_mut().into_iter().flatten() {
            if let Value::Object(entry) = entry {
                entry.remove("time");
            }
        }
        entries
    };
    if timeless(old) != timeless(new) {
        return;
    }
    let mut reverted = new.clone();
    put(&mut reverted, metadata_of(old).get("managedFields").cloned());
    if without_version(&reverted) == without_version(old) {
        *new = reverted;
    }
}

fn without_version(object: &Object) -> Object {
    let mut object = object.clone();
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("resourceVersion");
    }
    object
}

/// Returns true for a list without content, which resets the ownership.
fn is_reset(sent: &Value) -> bool {
    sent.as_array().is_some_and(|entries| {
        entries
            .iter()
            .all(|entry| entry.as_object().is_some_and(serde_json::Map::is_empty))
            && entries.len() <= 1
    })
}

fn take(object: &mut Object) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
}

fn put(object: &mut Object, managed: Option<Value>) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        match managed {
            Some(managed) => metadata.insert("managedFields".to_owned(), managed),
            None => metadata.remove("managedFields"),
        };
    }
}
