// SPDX-License-Identifier: Apache-2.0
//! Tracks the presence of kinds for all subscribers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture, abortable},
    stream::FuturesUnordered,
};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use serde::de::DeserializeOwned;
use steersman_cache::{
    Event, Health, Informer, InformerContext, InformerOptions, Registration, Representation, Resource, Scope,
    StoreOptions, WatchError,
};
use steersman_core::{Clock, MonotonicTime, Mutex, Presence, PresenceStatus, Task};
use tokio::sync::{Notify, Semaphore, watch};

use super::{
    POLL_EVERY,
    discovery::{Discovery, Since},
    index::{Definition, PresenceIndex, Service, Trust, Verdict},
    pending,
    probe::{AT_ONCE, probe},
    publisher::PresencePublisher,
};
use crate::Mapper;

/// Tracker of one cluster. Its tasks stop when it is dropped.
pub(super) struct Tracker {
    shared: Arc<Shared>,
    _watching: [(Informer, Registration); 2],
    _task: Task,
    /// Notified when a presence might have changed.
    changes: Arc<watch::Sender<()>>,
}

struct Shared {
    index: Mutex<PresenceIndex>,
    subscriptions: Mutex<BTreeMap<Resource, Entry>>,
    changed: Notify,
}

/// A kind with subscribers.
struct Entry {
    publisher: PresencePublisher,
    /// Number of subscribers for each interval.
    intervals: BTreeMap<Duration, usize>,
    /// Answers of discovery that count, while the kind is left to discovery.
    discovery_since: Option<Since>,
}

/// State of a watched object.
enum Observed<P> {
    Decoded(P),
    /// The object exists and cannot be decoded.
    Undecodable,
    Deleted,
}

/// A subscriber of a kind. The tracker runs while there is at least one.
pub(super) struct Subscription {
    tracker: Arc<Tracker>,
    resource: Resource,
    interval: Duration,
}

impl Tracker {
    pub(super) fn start(
        context: &InformerContext,
        mapper: &Mapper,
        changes: &Arc<watch::Sender<()>>,
    ) -> Self {
        let shared = Arc::new(Shared {
            index: Mutex::default(),
            subscriptions: Mutex::default(),
            changed: Notify::new(),
        });
        let definitions = watch_objects::<CustomResourceDefinition, Definition>(
            context,
            &shared,
            |index, name, uid, definition| match definition {
                Observed::Decoded(definition) => index.define(name, uid, definition),
                Observed::Undecodable => index.define_undecodable(name),
                Observed::Deleted => index.undefine(name),
            },
        );
        let services =
            watch_objects::<APIService, Service>(context, &shared, |index, name, _, service| match service {
                Observed::Decoded(service) => index.serve(name, service),
                Observed::Undecodable => index.serve_undecodable(name),
                Observed::Deleted => index.unserve(name),
            });
        let follower = Follower {
            shared: Arc::clone(&shared),
            informers: [definitions.0.clone(), services.0.clone()],
            mapper: mapper.clone(),
            discovery: Discovery::new(mapper.clone()),
            client: context.client().clone(),
            clock: Arc::clone(context.clock()),
            confirmed: BTreeSet::new(),
            probing: BTreeMap::new(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            changes: Arc::clone(changes),
        };
        Self {
            changes: Arc::clone(changes),
            _task: context.spawner().spawn("presence", follower.follow()),
            _watching: [definitions, services],
            shared,
        }
    }

    pub(super) fn subscribe(
        tracker: &Arc<Self>,
        resource: &Resource,
        interval: Duration,
    ) -> (Subscription, watch::Receiver<PresenceStatus>) {
        let mut subscriptions = tracker.shared.subscriptions();
        let entry = subscriptions.entry(resource.clone()).or_insert_with(|| Entry {
            publisher: PresencePublisher::new(pending(resource)),
            intervals: BTreeMap::new(),
            discovery_since: None,
        });
        *entry.intervals.entry(interval).or_default() += 1;
        let presence_statuses = entry.publisher.subscribe();
        drop(subscriptions);
        tracker.shared.changed.notify_one();
        let subscriptions = Subscription {
            tracker: Arc::clone(tracker),
            resource: resource.clone(),
            interval,
        };
        (subscriptions, presence_statuses)
    }

    /// Returns the presence of a kind, with or without a subscriber.
    pub(super) fn presence(&self, resource: &Resource) -> Presence {
        let published = self
            .shared
            .subscriptions()
            .get(resource)
            .map(|entry| entry.publisher.now());
        let judged = match self.shared.index().judge(resource) {
            Verdict::Known(presence_status) => presence_status.presence,
            Verdict::Ask => Presence::Unknown,
        };
        match published {
            None => judged,
            // The known presence is not published yet.
            Some(published) if published.is_pending && judged == Presence::Absent => judged,
            Some(published) => published.presence,
        }
    }

    pub(super) fn all(&self) -> Vec<(Resource, PresenceStatus)> {
        let subscriptions = self.shared.subscriptions();
        let all = subscriptions
            .iter()
            .map(|(resource, entry)| (resource.clone(), entry.publisher.now()));
        all.collect()
    }
}

impl Drop for Tracker {
    /// Notifies receivers: without a tracker, every presence is unknown.
    fn drop(&mut self) {
        self.changes.send_replace(());
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscriptions = self.tracker.shared.subscriptions();
        let Some(entry) = subscriptions.get_mut(&self.resource) else {
            return;
        };
        if let Some(count) = entry.intervals.get_mut(&self.interval) {
            *count -= 1;
            if *count == 0 {
                entry.intervals.remove(&self.interval);
            }
        }
        if entry.intervals.is_empty() {
            subscriptions.remove(&self.resource);
            self.tracker.shared.changed.notify_one();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.resource).finish()
    }
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, PresenceIndex> {
        self.index.lock()
    }

    fn subscriptions(&self) -> MutexGuard<'_, BTreeMap<Resource, Entry>> {
        self.subscriptions.lock()
    }
}

/// Updates the index from the objects of a kind, of which only `P` is kept.
fn watch_objects<K, P>(
    context: &InformerContext,
    shared: &Arc<Shared>,
    note: fn(&mut PresenceIndex, &str, &str, Observed<&P>),
) -> (Informer, Registration)
where
    K: kube::Resource<DynamicType = (), Scope: 'static>,
    P: DeserializeOwned + Send + Sync + 'static,
{
    let store = StoreOptions::new().representation(Representation::projection_only::<P>());
    let options = InformerOptions::default().store(store);
    let informer = Informer::start(context, Resource::of::<K>(), Scope::all(), options);
    let shared = Arc::clone(shared);
    let registration = informer.handle("presence", move |event: &Event| {
        let object = event.object();
        let decoded = object.decoded::<P>();
        let observed = match &decoded {
            _ if event.is_deletion() => Observed::Deleted,
            Ok(decoded) => Observed::Decoded(&**decoded),
            Err(error) => {
                tracing::warn!(%error, "cannot decode CRD or APIService; keeping the last known state");
                Observed::Undecodable
            }
        };
        note(&mut shared.index(), object.name(), object.uid(), observed);
        shared.changed.notify_one();
    });
    (informer, registration)
}

/// The task of a tracker.
struct Follower {
    shared: Arc<Shared>,
    /// Informers of CRDs and of APIServices.
    informers: [Informer; 2],
    mapper: Mapper,
    discovery: Discovery,
    client: kube::Client,
    clock: Arc<dyn Clock>,
    /// Kinds for which the server has answered a probe since they were defined.
    confirmed: BTreeSet<(Resource, Arc<str>)>,
    /// Kinds that are being probed.
    probing: BTreeMap<(Resource, Arc<str>), AbortHandle>,
    turns: Arc<Semaphore>,
    changes: Arc<watch::Sender<()>>,
}

/// Work that remains after a round of publishing.
#[derive(Default)]
struct Open {
    /// Kinds with a CRD that are not confirmed yet.
    unconfirmed: BTreeSet<(Resource, Arc<str>)>,
    /// Groups with kinds that are left to discovery.
    groups: BTreeSet<String>,
    /// Set if discovery has no answer that counts for one of these, and no presence was published for it.
    is_new: bool,
    interval: Duration,
}

type Probing = FuturesUnordered<Abortable<BoxFuture<'static, (Resource, Arc<str>)>>>;

impl Follower {
    async fn follow(mut self) {
        let mut probing = Probing::new();
        loop {
            let health = self.informers.each_ref().map(Informer::health);
            self.trust(&health);
            let open = self.publish();
            self.changes.send_replace(());
            self.probe(&open.unconfirmed, &probing);
            let next = self.next_question(&open);
            let [definitions, services] = &self.informers;
            tokio::select! {
                biased;
                () = self.shared.changed.notified() => {}
                _ = definitions.health_when(|now| differs(now, &health[0])) => {}
                _ = services.health_when(|now| differs(now, &health[1])) => {}
                Some(probed) = probing.next() => {
                    // An aborted probe returns an error.
                    if let Ok(confirmed) = probed && self.probing.remove(&confirmed).is_some() {
                        self.confirmed.insert(confirmed);
                    }
                }
                () = self.discovery.answered(self.clock.as_ref()) => {}
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some() => {
                    self.discovery.ask(open.groups);
                }
            }
        }
    }

    /// Starts probes for unconfirmed kinds, and aborts all others.
    fn probe(&mut self, unconfirmed: &BTreeSet<(Resource, Arc<str>)>, probing: &Probing) {
        self.probing.retain(|kind, handle| {
            let is_meant = unconfirmed.contains(kind);
            if !is_meant {
                handle.abort();
            }
            is_meant
        });
        for (resource, uid) in unconfirmed {
            let (resource, uid) = (resource.clone(), Arc::clone(uid));
            let entry = self.probing.entry((resource.clone(), Arc::clone(&uid)));
            entry.or_insert_with(|| {
                let (client, clock) = (self.client.clone(), Arc::clone(&self.clock));
                let turns = Arc::clone(&self.turns);
                let probe = async move {
                    probe(&client, clock.as_ref(), &resource, &turns).await;
                    (resource, uid)
                };
                let (probe, handle) = abortable(probe.boxed());
                probing.push(probe);
                handle
            });
        }
    }

    /// Returns the time of the next round of discovery, if one is needed.
    fn next_question(&self, open: &Open) -> Option<MonotonicTime> {
        if open.groups.is_empty() || self.discovery.is_asking() {
            return None;
        }
        Some(match open.is_new {
            true => MonotonicTime::default(),
            false => self.discovery.next(open.interval),
        })
    }

    fn trust(&mut self, health: &[Health; 2]) {
        let mut index = self.shared.index();
        let now = trust(&index.trust_definitions, &health[0]);
        if index.trust_definitions != Trust::Closed && now == Trust::Closed {
            // The answers of discovery are from before CRDs were watched.
            self.discovery.forget();
        }
        index.trust_definitions = now;
        index.trust_services = trust(&index.trust_services, &health[1]);
    }

    /// Publishes the presence of all kinds.
    fn publish(&mut self) -> Open {
        let mut open = Open::default();
        let index = self.shared.index();
        let mut subscriptions = self.shared.subscriptions();
        let intervals = subscriptions.values().flat_map(|entry| entry.intervals.keys());
        open.interval = intervals.min().copied().unwrap_or(POLL_EVERY);
        let mut gone = self.confirmed.clone();
        for (resource, entry) in subscriptions.iter_mut() {
            let namespaced = index.is_namespaced(resource);
            let verdict = index.judge(resource);
            if let Verdict::Known(_) = verdict {
                entry.discovery_since = None;
            }
            let presence_status = match verdict {
                Verdict::Ask => {
                    let since = || Since::now(self.clock.now(), &entry.publisher.now(), open.interval);
                    let since = *entry.discovery_since.get_or_insert_with(since);
                    match self.discovery.says(resource, since) {
                        Some((presence_status, namespaced)) => {
                            entry.publisher.publish(presence_status, namespaced)
                        }
                        None if entry.publisher.now().presence == Presence::Unknown => {
                            entry.publisher.publish(pending(resource), None);
                            open.is_new = true;
                        }
                        // The published presence stays until discovery answers.
                        None => {}
                    }
                    open.groups.insert(resource.group().to_owned());
                    continue;
                }
                Verdict::Known(presence_status) => match &presence_status.incarnation {
                    Some(uid) if presence_status.is_present() => {
                        let confirmed = (resource.clone(), Arc::clone(uid));
                        gone.remove(&confirmed);
                        if self.confirmed.contains(&confirmed) || entry.publisher.is_of(uid, namespaced) {
                            presence_status
                        } else {
                            open.unconfirmed.insert(confirmed);
                            // A kind with an unknown presence might have been present all the time: unknown is not
                            // absent.
                            let reason = format!("{resource} is about to be served");
                            match entry.publisher.now().presence {
                                Presence::Unknown => PresenceStatus::pending(reason),
                                _ => PresenceStatus::new(Presence::Absent, reason),
                            }
                        }
                    }
                    _ => presence_status,
                },
            };
            if presence_status.is_absent() && !entry.publisher.now().is_absent() {
                // The kind can be installed again with another scope. The mapper has what discovery answered.
                self.mapper.forget_versions(resource);
            }
            entry.publisher.publish(presence_status, namespaced);
        }
        drop((index, subscriptions));
        for former in gone {
            self.confirmed.remove(&former);
        }
        open
    }
}

fn differs(now: &Health, before: &Health) -> bool {
    (now.synced, &now.error) != (before.synced, &before.error)
}

fn trust(before: &Trust, health: &Health) -> Trust {
    match health.error.as_deref() {
        Some(WatchError::Forbidden { .. } | WatchError::NotInstalled) => Trust::Closed,
        // The state is from before the watch was closed. Another error does not make it current again; only a list
        // does.
        Some(_) if *before == Trust::Closed => Trust::Closed,
        None if *before == Trust::Closed && !health.synced => Trust::Closed,
        _ if health.synced => Trust::Watched,
        Some(trouble) => Trust::Lost(trouble.to_string().into()),
        None => Trust::NotYet,
    }
}
