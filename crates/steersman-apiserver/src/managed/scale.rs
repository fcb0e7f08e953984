// SPDX-License-Identifier: Apache-2.0
//! Managed fields of replicas, mapped between an object and its scale.
//!
//! A scale has managed fields only while it is written. They are derived from those of the object, and the changes are
//! mapped back, with the path of the replicas in the object.

use serde_json::Value;

use super::entries::{Entry, Managers};
use crate::{apply::FieldSet, handler::Target, json::DEPTH};

const VERSION: &str = "autoscaling/v1";

/// Returns the path of the replicas in this version: `None` for an unknown version, `Some(None)` for a version without
/// scale.
fn replicas(target: &Target, api_version: &str) -> Option<Option<FieldSet>> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let version = target
        .resource
        .version(version)
        .filter(|_| group == target.resource.group)?;
    // No object is nested deeper than that.
    let paths = version.scale.as_ref().filter(|paths| paths.spec.len() <= DEPTH);
    Some(paths.map(|paths| {
        let path: Vec<&str> = paths.spec.iter().map(String::as_str).collect();
        FieldSet::of(&[&path])
    }))
}

fn in_scale() -> FieldSet {
    FieldSet::of(&[&["spec", "replicas"]])
}

fn has(set: &FieldSet, path: &FieldSet) -> bool {
    !set.intersection(path).is_empty()
}

/// Maps the managers of an object's replicas to managers of its scale.
pub(crate) fn to_scale(target: &Target, of_object: Option<&Value>) -> Option<Value> {
    let mut managers = Managers::default();
    for (manager, entry) in decoded(of_object).0 {
        if let Some(Some(path)) = replicas(target, &entry.api_version)
            && has(&entry.set, &path)
        {
            let entry = Entry {
                api_version: VERSION.to_owned(),
                set: in_scale(),
                ..entry
            };
            managers.0.insert(manager, entry);
        }
    }
    managers.encode()
}

/// Returns the managers of an object after a change of its scale's managers.
pub(crate) fn from_scale(
    target: &Target,
    of_object: Option<&Value>,
    of_scale: Option<&Value>,
) -> Option<Value> {
    let (before, mut scale) = (decoded(of_object).0, decoded(of_scale).0);
    let mut managers = Managers::default();
    for (manager, entry) in &before {
        let Some(path) = replicas(target, &entry.api_version) else {
            continue;
        };
        let set = match path {
            // The real server loses update managers here, since its scales list them under another version.
            Some(path) if has(&entry.set, &path) && scale.remove(manager).is_none() => {
                entry.set.difference(&path)
            }
            _ => entry.set.clone(),
        };
        if !set.is_empty() {
            managers.0.insert(manager.clone(), Entry { set, ..entry.clone() });
        }
    }
    let api_version = target.api_version();
    for (manager, entry) in scale {
        if let Some(Some(path)) = replicas(target, &api_version)
            && has(&entry.set, &in_scale())
        {
            let time = before.get(&manager).and_then(|entry| entry.time.clone());
            let entry = Entry {
                api_version: api_version.clone(),
                time,
                set: path,
            };
            managers.0.insert(manager, entry);
        }
    }
    managers.encode()
}

fn decoded(entries: Option<&Value>) -> Managers {
    entries.and_then(Managers::decode).unwrap_or_default()
}
