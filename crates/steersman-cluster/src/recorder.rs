// SPDX-License-Identifier: Apache-2.0
//! Records events about objects, which `kubectl describe` shows.
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
//! 1. Recording never waits: an event is put into a queue. If the queue is full, the event is dropped and counted.
//! 2. A repeated event is one object on the server: a series with a count. The recorder writes it at once the second
//!    time, then at most once a minute, and when it ends after six minutes without a repetition.
//! 3. The recorder accepts 25 different events about one object at once, and one more every five minutes. Others are
//!    dropped and counted.
//! 4. Events are sent to the cluster of their recorder, and pass its fences.
//! 5. Texts that are longer than the server accepts are cut: reason and action at 128 bytes, the note at 1024.
//! 6. Events that the server rejects are dropped and counted. For each component and code, the log has one warning with
//!    the server's message. An event whose namespace is deleted or terminating causes no warning.
//! 7. The names of events and components are always valid, for every name of the object. A component that is not a
//!    qualified name such as `example.com/web` is made one, with `-` for each character that is not allowed.
//! 8. The last time of a series is the time of its last occurrence, not of the write.
//!
//! # Not promised
//! Delivery of every event. A failed write is tried five times. Before the process exits, call
//! [`flush_events`](crate::Cluster::flush_events), as a manager does when it stops.

mod attempt;
mod book;
mod event;
mod names;
#[cfg(test)]
mod tests;
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

pub use self::event::{EventBuilder, EventType, RecordedEvent};
use self::worker::Worker;
use crate::{ClusterName, Fence, cluster::Inner, transport::Transport};

/// Maximum number of queued events.
const QUEUE: usize = 1000;
/// Maximum length of a reason, an action and an instance.
const REASON_MAX: usize = 128;
/// Maximum length of a note.
const NOTE_MAX: usize = 1024;

/// Records events of one component; from [`Cluster::recorder`](crate::Cluster::recorder). Cloning copies pointers.
#[derive(Clone)]
pub struct Recorder {
    cluster: Arc<Inner>,
    component: Arc<str>,
    instance: Arc<str>,
    fences: Arc<[Fence]>,
    observer: Option<Arc<Observer>>,
}

type Observer = dyn Fn(&RecordedEvent) + Send + Sync;

/// Numbers of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventCounts {
    /// Recorded events, repetitions included.
    pub recorded: u64,
    /// Recorded events that were not written: too many, rejected by the server, or rejected by a fence.
    pub dropped: u64,
}

/// Identity of an event: equal keys are one series.
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

/// Reference to an object, independent of its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reference {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    field_path: String,
}

/// A message in the queue.
enum Message {
    Event {
        key: Box<Key>,
        at: SystemTime,
        fences: Arc<[Fence]>,
    },
    /// Notified when all messages before it are processed.
    Barrier(oneshot::Sender<()>),
}

/// Queue for the recorders of a cluster. The worker starts with the first event.
pub(crate) struct Events {
    running: OnceLock<(mpsc::Sender<Message>, Task)>,
    counters: Arc<Counters>,
    transport: Transport,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    spawner: Spawner,
    wall: WallClock,
}

/// Source of the wall-clock time.
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

    /// Returns a recorder whose events pass this fence in addition.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self {
            fences: self.fences.iter().cloned().chain([fence]).collect(),
            ..self.clone()
        }
    }

    /// Returns a recorder that calls `observer` with each recorded event, repetitions included, before it decides what
    /// to write. The observer must be quick.
    #[must_use]
    pub fn observed(&self, observer: impl Fn(&RecordedEvent) + Send + Sync + 'static) -> Self {
        Self {
            observer: Some(Arc::new(observer)),
            ..self.clone()
        }
    }

    /// Records an event about an object, with a reason as one word in `UpperCamelCase`, an action, and a message for
    /// people. The server requires reason and action, and accepts an empty message. Returns at once.
    pub fn event<K>(&self, object: &K, kind: EventType, reason: &str, action: &str, note: &str)
    where
        K: kube::Resource<DynamicType = ()>,
    {
        self.about(object).event(kind, reason, action, note);
    }

    /// Starts an event about an object, with more options than [`event`](Self::event).
    pub fn about<K: kube::Resource<DynamicType = ()>>(&self, object: &K) -> EventBuilder<'_> {
        self.about_reference(kube::Resource::object_ref(object, &()))
    }

    /// Starts an event about an object of a dynamic kind.
    pub fn about_dynamic(&self, object: &DynamicObject, resource: &Resource) -> EventBuilder<'_> {
        self.about_reference(kube::Resource::object_ref(object, &resource.into()))
    }

    /// Starts an event about an object given by reference.
    pub fn about_reference(&self, object: ObjectReference) -> EventBuilder<'_> {
        EventBuilder {
            recorder: self,
            regarding: object,
            related: None,
        }
    }

    /// Waits until all events of the cluster recorded so far, by any recorder, are written or dropped.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn flush(&self) {
        self.cluster.events().flush().await;
    }
}

impl Events {
    pub(crate) fn new(
        transport: Transport,
        clock: Arc<dyn Clock>,
        random: Arc<Random>,
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

    /// Waits until all queued messages are processed.
    pub(crate) async fn flush(&self) {
        // No event was recorded, so no worker runs.
        let Some((queue, _)) = self.running.get() else {
            return;
        };
        let (done, is_done) = oneshot::channel();
        if queue.send(Message::Barrier(done)).await.is_ok() {
            // An error means that the worker has ended, and no event is left.
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
                Arc::clone(&self.clock),
                Arc::clone(&self.random),
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

/// Cuts a text to at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// Returns the host name, which is the name of the Pod in a cluster.
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

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("cluster", self.cluster.name())
            .field("component", &self.component)
            .field("fences", &self.fences)
            .finish_non_exhaustive()
    }
}
