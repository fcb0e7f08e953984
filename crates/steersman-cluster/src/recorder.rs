// SPDX-License-Identifier: Apache-2.0
//! Events about objects, for people who look at them with `kubectl describe`.
//!
//! ```no_run
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
//! use steersman_cluster::{Cluster, EventType};
//!
//! # fn example(cluster: Cluster, deployment: Deployment, pod: Pod) {
//! let recorder = cluster.recorder("web");
//! recorder.event(&deployment, EventType::Normal, "ScaledUp", "Scaling", "to 3 replicas");
//! recorder
//!     .about(&deployment)
//!     .related(&pod)
//!     .event(EventType::Warning, "Unschedulable", "Scaling", "no node has room");
//! # }
//! ```
//!
//! # Guarantees
//! 1. Recording never waits: an event is put into a queue, or dropped and counted where that is full.
//! 2. The same event again is one object on the server: a series with a count. It is written at once the second time, then
//!    at most once a minute, and when it ends after six minutes of silence.
//! 3. About one object there are 25 different events at once, and one more every five minutes; others are dropped and
//!    counted.
//! 4. Events go to the cluster of their recorder, and pass its fences.
//! 5. What is longer than a server takes is cut: reason and action at 128 bytes, the note at 1024.
//! 6. Events that a server refuses are dropped and counted, and for each component and code the log has one warning with
//!    the server's words. That a namespace has gone before an event about it is no reason for one.
//! 7. An event has a name that a server takes, whatever the name of the object is, and so has the component: what is no
//!    qualified name such as `example.com/web` is made one, with `-` for each character that may not be in it.
//! 8. The last time of a series is when it happened last, not when that was written.
//!
//! # Not promised
//! That every event arrives: they are for people, and a server in trouble has other worries. One that cannot be written
//! is tried five times. Whoever ends the process lets them be written with
//! [`flush_events`](crate::Cluster::flush_events), as a manager does when it stops.

mod book;
mod names;
mod worker;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::DynamicObject;
use steersman_cache::Resource;
use steersman_core::{Clock, Random, Spawner, Task};
use tokio::sync::{mpsc, oneshot};

use self::worker::Worker;
use crate::{ClusterName, Fence, cluster::Inner, transport::Transport};

/// How many events may wait.
const QUEUE: usize = 1000;
const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// Records events of one component; from [`Cluster::recorder`](crate::Cluster::recorder). Cloning it copies pointers.
#[derive(Clone)]
pub struct Recorder {
    cluster: Arc<Inner>,
    component: Arc<str>,
    instance: Arc<str>,
    fences: Arc<[Fence]>,
    observer: Option<Arc<Observer>>,
}

type Observer = dyn Fn(&RecordedEvent) + Send + Sync;

/// An event as somebody recorded it; what [`Recorder::observed`] tells. It is shown such as `Normal ScaledUp`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Whether it is a reason for concern.
    pub kind: EventType,
    /// Why, as one word.
    pub reason: String,
    /// During which action.
    pub action: String,
    /// In words for people.
    pub note: String,
    /// What it is about.
    pub regarding: ObjectReference,
}

/// What an event is about; from [`Recorder::about`].
#[derive(Clone)]
#[must_use]
pub struct EventBuilder<'a> {
    recorder: &'a Recorder,
    regarding: ObjectReference,
    related: Option<ObjectReference>,
}

/// Whether an event is a reason for concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a server takes these two")]
pub enum EventType {
    /// It is not.
    Normal,
    /// It is.
    Warning,
}

/// How many events there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventCounts {
    /// Those that were recorded, repetitions included.
    pub recorded: u64,
    /// Those of them that were not written: too many, refused, or held back.
    pub dropped: u64,
}

/// What makes an event the same as another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    component: Arc<str>,
    instance: Arc<str>,
    regarding: Reference,
    related: Option<Reference>,
    kind: EventType,
    reason: Box<str>,
    action: Box<str>,
    note: Box<str>,
}

/// An object that an event is about, whatever state it is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reference {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    field_path: String,
}

/// What is in the queue.
enum Message {
    Event {
        key: Box<Key>,
        at: SystemTime,
        fences: Arc<[Fence]>,
    },
    /// Tells when all before it is done.
    Barrier(oneshot::Sender<()>),
}

/// Where the recorders of a cluster put events. It starts with the first one.
pub(crate) struct Events {
    running: OnceLock<(mpsc::Sender<Message>, Task)>,
    counters: Arc<Counters>,
    transport: Transport,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    wall: WallClock,
}

/// What says which time people would say it is.
pub(crate) type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

#[derive(Debug, Default)]
struct Counters {
    recorded: AtomicU64,
    dropped: AtomicU64,
}

impl Recorder {
    pub(crate) fn new(cluster: &Arc<Inner>, component: &str) -> Self {
        let component = names::of_component(component);
        let instance = format!("{component}-{}", host());
        Self {
            cluster: Arc::clone(cluster),
            component: component.into(),
            instance: cut(&instance, REASON_MAX).into(),
            fences: Arc::new([]),
            observer: None,
        }
    }

    /// The same, whose events pass this fence besides.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self {
            fences: self.fences.iter().cloned().chain([fence]).collect(),
            ..self.clone()
        }
    }

    /// The same, where somebody is told of each event when it is recorded, repetitions included, before it is decided
    /// what is written of it. The observer must be quick.
    #[must_use]
    pub fn observed(&self, observer: impl Fn(&RecordedEvent) + Send + Sync + 'static) -> Self {
        Self {
            observer: Some(Arc::new(observer)),
            ..self.clone()
        }
    }

    /// Records that something happened to an object: why, as one word in `UpperCamelCase`; during which action; and in
    /// words for people. A server wants both words, and takes an empty text. It returns at once.
    pub fn event<K>(&self, object: &K, kind: EventType, reason: &str, action: &str, note: &str)
    where
        K: kube::Resource<DynamicType = ()>,
    {
        self.about(object).event(kind, reason, action, note);
    }

    /// Something about an object, with more to say than [`event`](Self::event) can.
    pub fn about<K: kube::Resource<DynamicType = ()>>(&self, object: &K) -> EventBuilder<'_> {
        self.about_reference(kube::Resource::object_ref(object, &()))
    }

    /// An event about an object of a dynamic kind.
    pub fn about_dynamic(&self, object: &DynamicObject, resource: &Resource) -> EventBuilder<'_> {
        self.about_reference(kube::Resource::object_ref(object, &resource.into()))
    }

    /// An event about an object given by reference.
    pub fn about_reference(&self, object: ObjectReference) -> EventBuilder<'_> {
        EventBuilder {
            recorder: self,
            regarding: object,
            related: None,
        }
    }

    /// Waits until all that was recorded so far, also by others, was written or dropped.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn flush(&self) {
        self.cluster.events().flush().await;
    }
}

impl EventBuilder<'_> {
    /// Another object that plays a part in it.
    pub fn related<K: kube::Resource<DynamicType = ()>>(self, object: &K) -> Self {
        self.related_reference(kube::Resource::object_ref(object, &()))
    }

    /// Another object that plays a part in it and is not at hand.
    pub fn related_reference(mut self, object: ObjectReference) -> Self {
        self.related = Some(object);
        self
    }

    /// Records it, as [`Recorder::event`] does.
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

impl Events {
    pub(crate) fn new(
        transport: Transport,
        (clock, random): (Arc<dyn Clock>, Arc<Random>),
        spawner: Spawner,
        wall: WallClock,
    ) -> Self {
        Self {
            running: OnceLock::new(),
            counters: Arc::default(),
            transport,
            clock,
            random,
            spawner,
            wall,
        }
    }

    pub(crate) fn counts(&self) -> EventCounts {
        EventCounts {
            recorded: self.counters.recorded.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
        }
    }

    /// Waits until all that is in the queue is done.
    pub(crate) async fn flush(&self) {
        // Where nothing was recorded, there is nobody to ask.
        let Some((queue, _)) = self.running.get() else {
            return;
        };
        let (done, is_done) = oneshot::channel();
        if queue.send(Message::Barrier(done)).await.is_ok() {
            // Dropped without a word, it has ended, and everything with it.
            let _ = is_done.await;
        }
    }

    fn put(&self, cluster: &ClusterName, key: Box<Key>, fences: &Arc<[Fence]>) {
        self.counters.recorded.fetch_add(1, Ordering::Relaxed);
        let message = Message::Event {
            key,
            at: (self.wall)(),
            fences: Arc::clone(fences),
        };
        if self.queue(cluster).try_send(message).is_err() {
            self.counters.dropped();
        }
    }

    fn queue(&self, cluster: &ClusterName) -> &mpsc::Sender<Message> {
        let (queue, _) = self.running.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let worker = Worker::new(
                cluster.clone(),
                receiver,
                self.transport.clone(),
                (Arc::clone(&self.clock), Arc::clone(&self.random)),
                Arc::clone(&self.counters),
            );
            (sender, self.spawner.spawn("events", worker.run()))
        });
        queue
    }
}

impl Counters {
    fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl From<ObjectReference> for Reference {
    fn from(object: ObjectReference) -> Self {
        Self {
            api_version: object.api_version.unwrap_or_default(),
            kind: object.kind.unwrap_or_default(),
            namespace: object.namespace.unwrap_or_default(),
            name: object.name.unwrap_or_default(),
            uid: object.uid.unwrap_or_default(),
            field_path: object.field_path.unwrap_or_default(),
        }
    }
}

/// As much of a text as there is room for.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// The name of this machine, which in a cluster is that of the Pod.
fn host() -> String {
    let of_kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = std::env::var("HOSTNAME").ok().or_else(of_kernel);
    let name = name.unwrap_or_default().trim().to_owned();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name
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

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("cluster", self.cluster.name())
            .field("component", &self.component)
            .field("fences", &self.fences)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EventBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("About")
            .field("kind", &self.regarding.kind)
            .field("name", &self.regarding.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_5_a_text_is_cut_between_characters() {
        assert_eq!(cut("short", 128), "short");
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut(&"é".repeat(1000), NOTE_MAX).len(), NOTE_MAX);
    }
}
