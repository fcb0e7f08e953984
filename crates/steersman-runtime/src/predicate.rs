// SPDX-License-Identifier: Apache-2.0
//! Predicates: drop changes that do not matter.
//!
//! A predicate drops changes before they become keys. It saves reconciles, not memory. The ready-made predicates accept
//! creations, deletions and repeated objects; they drop only updates. They read only metadata. There are two exceptions:
//! [`resource_version_changed`] drops repeats by a resync, and [`object_is`] reads whole objects and applies to every
//! event.
//!
//! If a predicate panics, the change passes.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;
use steersman_cache::Object;

use crate::ObjectEvent;

/// Decides if a change is dropped. It is cheap to clone.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use steersman_runtime::{generation_changed, labels_changed, object_is};
///
/// let wanted = generation_changed()
///     .or(labels_changed())
///     .and(object_is(|deployment: &Deployment| deployment.spec.replicas != Some(0)));
/// # let _ = wanted;
/// ```
pub struct Predicate<T>(Arc<Admits<T>>);

type Admits<T> = dyn Fn(&ObjectEvent<'_, T>) -> bool + Send + Sync;

impl<T: 'static> Predicate<T> {
    /// Makes a predicate of a function.
    pub fn new(admits: impl Fn(&ObjectEvent<'_, T>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Returns true if the change passes.
    #[must_use]
    pub fn admits(&self, event: &ObjectEvent<'_, T>) -> bool {
        (self.0)(event)
    }

    /// Passes changes that both pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(move |event| self.admits(event) && other.admits(event))
    }

    /// Passes changes that at least one of them passes.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::new(move |event| self.admits(event) || other.admits(event))
    }
}

/// Negates the predicate.
impl<T: 'static> std::ops::Not for Predicate<T> {
    type Output = Self;

    fn not(self) -> Self {
        Self::new(move |event| !self.admits(event))
    }
}

impl<T> Clone for Predicate<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Predicate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}

/// Passes updates that change `metadata.generation`. The server increases it when the spec changes, not when the status is
/// written. Objects without a generation always pass.
#[must_use]
pub fn generation_changed<T: 'static>() -> Predicate<T> {
    on_update(|old, new| match (old.generation(), new.generation()) {
        (Some(old), Some(new)) => old != new,
        _ => true,
    })
}

/// Passes updates that change the labels.
#[must_use]
pub fn labels_changed<T: 'static>() -> Predicate<T> {
    on_update(|old, new| !old.labels().eq(new.labels()))
}

/// Passes updates that change the annotations.
#[must_use]
pub fn annotations_changed<T: 'static>() -> Predicate<T> {
    on_update(|old, new| !old.annotations().eq(new.annotations()))
}

/// Passes everything except resyncs of unchanged objects. Objects that exist when the controller starts pass, because they
/// were not reconciled yet. So does an object that a relist returns with other content at the same resource version, for
/// example after a change of the CRD's defaults.
#[must_use]
pub fn resource_version_changed<T: 'static>() -> Predicate<T> {
    Predicate::new(|event| event.event().is_change())
}

/// Passes updates that set the deletion timestamp: from then on only finalizers keep the object.
#[must_use]
pub fn deletion_began<T: 'static>() -> Predicate<T> {
    on_update(|old, new| !old.is_deleting() && new.is_deleting())
}

/// Passes changes of objects for which `holds` returns true, before or after the change. An object that cannot be decoded
/// passes, so that it is noticed.
pub fn object_is<T>(holds: impl Fn(&T) -> bool + Send + Sync + 'static) -> Predicate<T>
where
    T: DeserializeOwned + Send + Sync + 'static,
{
    Predicate::new(move |event| {
        let mut states = event.states();
        states.any(|object| object.decoded::<T>().map_or(true, |object| holds(&object)))
    })
}

fn on_update<T: 'static>(matters: impl Fn(&Object, &Object) -> bool + Send + Sync + 'static) -> Predicate<T> {
    Predicate::new(move |event| match event.old() {
        Some(old) => matters(old, event.object()),
        None => true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use steersman_cache::Event;
    use steersman_cluster::ClusterName;

    use super::*;

    fn object(metadata: &Value) -> Arc<Object> {
        let mut whole = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
        whole["metadata"]
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().unwrap().clone());
        Arc::new(Object::from_slice(&serde_json::to_vec(&whole).unwrap()).unwrap())
    }

    fn admits(predicate: &Predicate<Value>, event: &Event) -> bool {
        predicate.admits(&ObjectEvent::new(event, &ClusterName::default()))
    }

    fn update(old: &Value, new: &Value) -> Event {
        Event::Updated {
            old: object(old),
            new: object(new),
        }
    }

    #[test]
    fn an_unchanged_generation_is_dropped_and_a_missing_one_passes() {
        let predicate = generation_changed();
        assert!(!admits(
            &predicate,
            &update(&json!({"generation": 1}), &json!({"generation": 1}))
        ));
        assert!(admits(
            &predicate,
            &update(&json!({"generation": 1}), &json!({"generation": 2}))
        ));
        assert!(admits(&predicate, &update(&json!({}), &json!({}))));
    }

    #[test]
    fn labels_and_annotations_are_compared() {
        let old = json!({"labels": {"a": "1"}, "annotations": {"b": "1"}});
        let new = json!({"labels": {"a": "2"}, "annotations": {"b": "1"}});
        let event = update(&old, &new);
        assert!(admits(&labels_changed(), &event));
        assert!(!admits(&annotations_changed(), &event));
        assert!(admits(&annotations_changed().or(labels_changed()), &event));
        assert!(!admits(&annotations_changed().and(labels_changed()), &event));
        assert!(admits(&!annotations_changed(), &event));
    }

    // R147
    #[test]
    fn a_resync_is_distinguished_from_a_change() {
        let resynced = Event::Resynced {
            object: object(&json!({})),
        };
        assert!(!admits(&resource_version_changed(), &resynced));
        assert!(admits(&generation_changed(), &resynced));
        let changed = update(&json!({}), &json!({"resourceVersion": "2"}));
        assert!(admits(&resource_version_changed(), &changed));
        // D2
        let defaulted = update(&json!({}), &json!({"labels": {"a": "1"}}));
        assert!(admits(&resource_version_changed(), &defaulted));
        let same = update(&json!({}), &json!({}));
        assert!(!admits(&resource_version_changed(), &same));
        let first = Event::Added {
            object: object(&json!({})),
            initial: true,
        };
        assert!(admits(&resource_version_changed(), &first));
    }

    #[test]
    fn an_object_that_does_not_decode_is_not_dropped_by_a_predicate() {
        let never = Predicate::and(object_is(|_: &Value| false), generation_changed());
        assert!(!admits(&never, &update(&json!({}), &json!({}))));
        let event = update(&json!({}), &json!({}));
        let strange = object_is(|_: &u8| false);
        assert!(strange.admits(&ObjectEvent::new(&event, &ClusterName::default())));
    }
}
