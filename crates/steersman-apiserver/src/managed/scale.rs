// SPDX-License-Identifier: Apache-2.0
//! Managers of replicas, seen from the object that has them and from its scale.
//!
//! A scale has managers of its own only while it is written. They come from those of the object, and what becomes of
//! them goes back, each time with the path of the replicas there.

use serde_json::Value;

use super::entries::{Entry, Managers};
use crate::{apply::FieldSet, handler::Target, json::DEPTH};

const VERSION: &str = "autoscaling/v1";

/// Where an object of this version has its replicas; nothing for an unknown version, no path for one without a scale.
fn replicas(target: &Target, api_version: &str) -> Option<Option<FieldSet>> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let version = target
        .resource
        .version(version)
        .filter(|_| group == target.resource.group)?;
    // No object is deep enough to have more.
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

/// The managers of an object's replicas, as managers of its scale.
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

/// The managers of an object after those of its scale have changed.
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
            // The real server does not find managers of updates again: its scales have them under another version.
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
