// SPDX-License-Identifier: Apache-2.0
//! Kinds as sources: an informer of each cluster, and a handler on it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use steersman_cache::{Event, Health, Held, Registration, Resource, Scope, Trouble};
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Presence, Sighting, Task};
use steersman_queue::Queue;

use super::{SourceContext, SourceState};
use crate::{
    Enqueue, Handler, Kind, Occurrence, RequestKey, Wanted,
    hot_loop::HotLoops,
    kind::{ClusterChoice, WhenAbsent},
};

/// A kind and what follows from changes of its objects.
pub(crate) struct KindSource<R: RequestKey> {
    spec: Arc<KindSpec>,
    on_event: OnEvent<R>,
}

type OnEvent<R> = Arc<dyn Fn(&Event, &ClusterName, &Queue<R>) + Send + Sync>;

/// A [`Kind`] without its type.
#[derive(Clone, Debug)]
pub(crate) struct KindSpec {
    pub(crate) resource: Resource,
    pub(crate) scope: Option<Scope>,
    pub(crate) metadata_only: bool,
    pub(crate) place: ClusterChoice,
    pub(crate) resync: Option<Duration>,
    pub(crate) presence: WhenAbsent,
}

impl<R: RequestKey> KindSource<R> {
    pub(crate) fn new<T: 'static>(kind: Kind<T>, handler: impl Handler<T, R>) -> Self {
        let Kind {
            resource,
            scope,
            metadata_only,
            place,
            predicates,
            resync,
            presence,
            ..
        } = kind;
        let on_event = move |event: &Event, cluster: &ClusterName, queue: &Queue<R>| {
            let occurrence = Occurrence::<T>::new(event, cluster);
            if predicates.iter().all(|predicate| predicate.admits(&occurrence)) {
                let mut enqueue = Enqueue::new(queue, cluster, occurrence.is_replay());
                handler.handle(&occurrence, &mut enqueue);
            }
        };
        Self {
            spec: Arc::new(KindSpec {
                resource,
                scope,
                metadata_only,
                place,
                resync,
                presence,
            }),
            on_event: Arc::new(on_event),
        }
    }

    pub(crate) fn spec(&self) -> &KindSpec {
        &self.spec
    }

    pub(super) async fn run(&self, cx: SourceContext<R>) {
        let Some(cluster) = self.spec.cluster(&cx.home).cloned() else {
            return self.watch_every(&cx).await;
        };
        let report = |state| cx.report(state);
        let watching = Watching {
            queue: &cx.queue,
            poll_every: cx.poll_every,
            report: &report,
        };
        Self::watch(&self.spec, &self.on_event, &cluster, &watching).await;
    }

    /// The same, but an object whose controller wakes itself by writing it waits.
    pub(crate) fn slowing(self, hot_loops: Arc<HotLoops<R>>) -> Self {
        let on_event = self.on_event;
        let slowed = move |event: &Event, cluster: &ClusterName, queue: &Queue<R>| {
            let object = event.object();
            let slowed = match event {
                Event::Updated { .. } => hot_loops.woke(cluster, || object.key(), object.resource_version()),
                _ => None,
            };
            match slowed {
                Some(slowed) => hot_loops.slow(&slowed, (cluster, object.key()), queue),
                None => on_event(event, cluster, queue),
            }
        };
        Self {
            spec: self.spec,
            on_event: Arc::new(slowed),
        }
    }

    /// Watches in one cluster, until the cluster goes.
    async fn watch(spec: &KindSpec, on_event: &OnEvent<R>, cluster: &Cluster, cx: &Watching<'_, R>) {
        if spec.waits() {
            return Self::watch_while_present(spec, on_event, cluster, cx).await;
        }
        Self::watch_present(spec, on_event, cluster, cx).await;
        (cx.report)(SourceState::Dormant {
            reason: format!("cluster {} was removed", cluster.name()),
        });
    }

    /// Watches while the cluster has the kind.
    async fn watch_while_present(
        spec: &KindSpec,
        on_event: &OnEvent<R>,
        cluster: &Cluster,
        cx: &Watching<'_, R>,
    ) {
        let mut presence = cluster.presence(&spec.resource, cx.poll_every);
        loop {
            let sighting = presence.now();
            match sighting.presence {
                Presence::Present => {
                    let is_over = |now: &Sighting| {
                        now.is_absent() || (now.is_present() && now.incarnation != sighting.incarnation)
                    };
                    tokio::select! {
                        biased;
                        _ = presence.when(is_over) => {}
                        () = Self::watch_present(spec, on_event, cluster, cx) => return,
                    }
                    cluster.cache().end_idle(&spec.resource);
                }
                Presence::Absent => {
                    (cx.report)(SourceState::Dormant {
                        reason: sighting.reason.to_string(),
                    });
                    presence.when(|now| *now != sighting).await;
                }
                Presence::Unknown => {
                    (cx.report)(SourceState::Trouble {
                        reason: sighting.reason.to_string(),
                        absent: false,
                        was_ready: false,
                    });
                    presence.when(|now| *now != sighting).await;
                }
            }
        }
    }

    /// Watches, until the cluster is closed.
    async fn watch_present(spec: &KindSpec, on_event: &OnEvent<R>, cluster: &Cluster, cx: &Watching<'_, R>) {
        while !cluster.is_closed() {
            let informer = spec.wanted(cluster).informer();
            let (queue, name) = (cx.queue.clone(), cluster.name().clone());
            let on_event = Arc::clone(on_event);
            let handler = move |event: &Event| on_event(event, &name, &queue);
            let registration = match spec.resync {
                Some(every) => informer.handle_with_resync(cx.queue.name(), every, handler),
                None => informer.handle(cx.queue.name(), handler),
            };
            follow(&informer, &registration, cx).await;
            // Somebody removed the informer. Whoever wants to hear of the kind takes part in the next one.
        }
    }

    /// Watches in every cluster, as they come and go.
    async fn watch_every(&self, cx: &SourceContext<R>) {
        let mut members = cx.fleet.subscribe();
        let states: Arc<Mutex<BTreeMap<ClusterName, SourceState>>> = Arc::default();
        let combined = {
            let states = Arc::clone(&states);
            let reporter = cx.reporter.clone();
            move |name: &ClusterName, is: Option<SourceState>| {
                let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
                match is {
                    Some(is) => states.insert(name.clone(), is),
                    None => states.remove(name),
                };
                reporter.report(combine(&states));
            }
        };
        let combined = Arc::new(combined);
        let mut watching: BTreeMap<ClusterName, Task> = BTreeMap::new();
        loop {
            let clusters = members.borrow_and_update().clone();
            watching.retain(|name, _| {
                let stays = clusters.contains_key(name);
                if !stays {
                    combined(name, None);
                }
                stays
            });
            for (name, member) in clusters {
                if watching.contains_key(&name) {
                    continue;
                }
                combined(&name, Some(SourceState::Waiting));
                let cluster = member.cluster().clone();
                let (spec, on_event) = (Arc::clone(&self.spec), Arc::clone(&self.on_event));
                let (queue, combined, told) = (cx.queue.clone(), Arc::clone(&combined), name.clone());
                let poll_every = cx.poll_every;
                let task = cx.spawner.spawn("source", async move {
                    let report = move |state| combined(&told, Some(state));
                    let watching = Watching {
                        queue: &queue,
                        poll_every,
                        report: &report,
                    };
                    Self::watch(&spec, &on_event, &cluster, &watching).await;
                });
                watching.insert(name, task);
            }
            if watching.is_empty() {
                cx.ready();
            }
            if members.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Where one watch puts keys, and says how it stands.
struct Watching<'a, R: RequestKey> {
    queue: &'a Queue<R>,
    poll_every: Duration,
    report: &'a (dyn Fn(SourceState) + Send + Sync),
}

/// Says how an informer stands, until somebody ends it.
async fn follow<R: RequestKey>(informer: &Held, registration: &Registration, cx: &Watching<'_, R>) {
    let mut seen: Option<Health> = None;
    loop {
        let health = informer
            .health_when(|health| {
                seen.as_ref()
                    .is_none_or(|seen| seen.synced != health.synced || seen.trouble != health.trouble)
            })
            .await;
        if health.ended {
            return;
        }
        if health.synced && health.trouble.is_none() && !registration.is_synced() {
            registration.synced().await;
        }
        (cx.report)(state_of(&health, registration, informer));
        seen = Some(health);
    }
}

fn state_of(health: &Health, registration: &Registration, informer: &Held) -> SourceState {
    match &health.trouble {
        Some(trouble) => SourceState::Trouble {
            reason: format!("{}: {trouble}", informer.resource()),
            absent: **trouble == Trouble::Absent,
            was_ready: registration.is_synced(),
        },
        None if registration.is_synced() => SourceState::Ready,
        None => SourceState::Waiting,
    }
}

/// A cluster that is in trouble holds up no other.
fn combine(states: &BTreeMap<ClusterName, SourceState>) -> SourceState {
    if states.values().any(|state| *state == SourceState::Waiting) {
        return SourceState::Waiting;
    }
    let troubles: Vec<String> = states
        .iter()
        .filter_map(|(name, state)| match state {
            SourceState::Trouble { reason, .. } => Some(format!("{reason} (cluster {name})")),
            _ => None,
        })
        .collect();
    if troubles.is_empty() {
        SourceState::Ready
    } else {
        SourceState::Trouble {
            reason: troubles.join("; "),
            absent: false,
            was_ready: true,
        }
    }
}

impl KindSpec {
    /// Whether it is watched only while the cluster has it, without holding up the controller.
    fn waits(&self) -> bool {
        match self.presence {
            WhenAbsent::Mistake => false,
            WhenAbsent::DoWithout => true,
            // The whole controller waits for those of one cluster.
            WhenAbsent::Rest => matches!(self.place, ClusterChoice::Every),
        }
    }

    /// What of the kind is wanted in this cluster.
    pub(crate) fn wanted(&self, cluster: &Cluster) -> Wanted {
        let scope = match (&self.scope, self.metadata_only) {
            (scope, false) => scope.clone(),
            (Some(scope), true) => Some(scope.clone().metadata_only()),
            (None, true) => Some(cluster.cache().scope(&self.resource).metadata_only()),
        };
        Wanted::new(cluster.clone(), self.resource.clone(), scope)
    }

    /// The one cluster that it is about, if there is one.
    pub(crate) fn cluster<'a>(&'a self, home: &'a Cluster) -> Option<&'a Cluster> {
        match &self.place {
            ClusterChoice::Home => Some(home),
            ClusterChoice::One(cluster) => Some(cluster),
            ClusterChoice::Every => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(reason: &str) -> SourceState {
        SourceState::Trouble {
            reason: reason.to_owned(),
            absent: false,
            was_ready: false,
        }
    }

    #[test]
    fn a_cluster_in_trouble_holds_up_no_other() {
        let (a, b) = (ClusterName::from("a"), ClusterName::from("b"));
        let mut states = BTreeMap::from([(a, SourceState::Ready), (b.clone(), SourceState::Waiting)]);
        assert_eq!(combine(&states), SourceState::Waiting);
        states.insert(b, trouble("pods/v1: unreachable"));
        let SourceState::Trouble {
            was_ready, reason, ..
        } = combine(&states)
        else {
            panic!("trouble is not hidden");
        };
        assert!(was_ready && reason.ends_with("(cluster b)"), "{reason}");
    }
}
