// SPDX-License-Identifier: Apache-2.0
//! Events, and the builder of an event.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;

use super::{Key, NOTE_MAX, REASON_MAX, Recorder, cut};

/// A recorded event, for the observer of [`Recorder::observed`]. It is displayed such as `Normal ScaledUp`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Type of the event.
    pub kind: EventType,
    /// Reason, as one word.
    pub reason: String,
    /// Action during which it happened.
    pub action: String,
    /// Message for people.
    pub note: String,
    /// Object that the event is about.
    pub regarding: ObjectReference,
}

/// Builds an event about an object; from [`Recorder::about`].
#[derive(Clone)]
#[must_use]
pub struct EventBuilder<'a> {
    pub(super) recorder: &'a Recorder,
    pub(super) regarding: ObjectReference,
    pub(super) related: Option<ObjectReference>,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a server takes these two")]
pub enum EventType {
    /// No reason for concern.
    Normal,
    /// A reason for concern.
    Warning,
}

impl EventBuilder<'_> {
    /// Sets a second object that is involved.
    pub fn related<K: kube::Resource<DynamicType = ()>>(self, object: &K) -> Self {
        self.related_reference(kube::Resource::object_ref(object, &()))
    }

    /// Sets a second object that is involved, by reference.
    pub fn related_reference(mut self, object: ObjectReference) -> Self {
        self.related = Some(object);
        self
    }

    /// Records the event, like [`Recorder::event`].
    pub fn event(self, kind: EventType, reason: &str, action: &str, note: &str) {
        let recorder = self.recorder;
        if let Some(observer) = &recorder.observer {
            observer(&RecordedEvent {
                kind,
                reason: reason.to_owned(),
                action: action.to_owned(),
                note: note.to_owned(),
                regarding: self.regarding.clone(),
            });
        }
        let key = Box::new(Key {
            component: Arc::clone(&recorder.component),
            instance: Arc::clone(&recorder.instance),
            regarding: self.regarding.into(),
            related: self.related.map(Into::into),
            kind,
            reason: cut(reason, REASON_MAX).into(),
            action: cut(action, REASON_MAX).into(),
            note: cut(note, NOTE_MAX).into(),
        });
        let cluster = &recorder.cluster;
        cluster.events().put(cluster.name(), key, &recorder.fences);
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        })
    }
}

impl fmt::Display for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.reason)
    }
}

impl fmt::Debug for EventBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventBuilder")
            .field("kind", &self.regarding.kind)
            .field("name", &self.regarding.name)
            .finish_non_exhaustive()
    }
}
