// SPDX-License-Identifier: Apache-2.0
//! Watches a kind in every cluster, as clusters are added and removed.

use std::{collections::BTreeMap, sync::Arc};

use steersman_cluster::ClusterName;
use steersman_core::{Mutex, Task};

use super::{KindSource, Reporter, SourceContext, SourceState};
use crate::{RequestKey, cluster_set::Member, run_context::ClusterRoles};

/// Watches a kind in every cluster. Clusters are independent: a slow or failing cluster delays only its own keys.
pub(super) async fn watch<R: RequestKey>(source: &KindSource<R>, cx: &SourceContext<R>) {
    let mut members = cx.cluster_set.subscribe();
    let by_cluster = Arc::new(ClusterStates::new(cx.reporter.clone(), cx.cluster_roles.clone()));
    let mut watching: BTreeMap<ClusterName, (Member, Task)> = BTreeMap::new();
    loop {
        let clusters = members.borrow_and_update().present().clone();
        watching.retain(|name, (member, _)| {
            let stays = clusters.get(name).is_some_and(|now| now.is(member));
            if !stays {
                cx.gates.forget(member);
                // Also on standbys, where no worker runs. The keys of a new cluster with the same name wait behind its gate
                // until all sources have done this.
                match source.as_primary() {
                    Some(primary) => primary.kind_removed(name, &cx.sink),
                    None => _ = cx.sink.queue().purge(|key| key.cluster() == Some(name)),
                }
                by_cluster.remove(name);
            }
            stays
        });
        for (name, member) in clusters {
            watching.entry(name).or_insert_with(|| {
                let task = join(source, cx, &by_cluster, &member);
                (member, task)
            });
        }
        by_cluster.complete();
        if members.changed().await.is_err() {
            return;
        }
    }
}

/// Watches one of the clusters.
fn join<R: RequestKey>(
    source: &KindSource<R>,
    cx: &SourceContext<R>,
    by_cluster: &Arc<ClusterStates>,
    member: &Member,
) -> Task {
    let (source, by_cluster) = (source.clone(), Arc::clone(by_cluster));
    let (gates, member, index) = (Arc::clone(&cx.gates), member.clone(), cx.reporter.index);
    let (sink, options) = (Arc::new(gates.sink(&member)), cx.options.clone());
    by_cluster.set(member.cluster().name(), SourceState::Waiting);
    cx.spawner.spawn("source", async move {
        let cluster = member.cluster();
        let report = |state: SourceState| {
            if state.has_been_ready() {
                gates.in_sync(&member, index);
            }
            by_cluster.set(cluster.name(), state);
        };
        source.watch(cluster, &sink, &options, &report).await;
    })
}

/// State of the source in each cluster.
struct ClusterStates {
    reporter: Reporter,
    cluster_roles: ClusterRoles,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    states: BTreeMap<ClusterName, SourceState>,
    /// The clusters that exist at the start are known.
    is_complete: bool,
    /// Every initial cluster has synced or failed once. Clusters that are added later are listed while the others continue.
    has_begun: bool,
}

impl ClusterStates {
    fn new(reporter: Reporter, cluster_roles: ClusterRoles) -> Self {
        Self {
            reporter,
            cluster_roles,
            inner: Mutex::default(),
        }
    }

    fn set(&self, name: &ClusterName, state: SourceState) {
        self.change(|inner| _ = inner.states.insert(name.clone(), state));
    }

    fn remove(&self, name: &ClusterName) {
        self.change(|inner| _ = inner.states.remove(name));
    }

    fn complete(&self) {
        self.change(|inner| inner.is_complete = true);
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        let mut inner = self.inner.lock();
        change(&mut inner);
        let state = inner.combined(&self.cluster_roles);
        inner.has_begun |= !matches!(state, SourceState::Waiting | SourceState::WaitingForOtherCluster);
        // Under the lock, so that the newest state is reported last.
        self.reporter.report(state);
    }
}

impl Inner {
    /// Combines the states of all clusters. A failing cluster delays no other.
    fn combined(&self, cluster_roles: &ClusterRoles) -> SourceState {
        let is_waiting = |state: &SourceState| *state == SourceState::Waiting;
        let waiting = self.states.iter().filter(|(_, state)| is_waiting(state));
        let mut others_wait = waiting
            .map(|(name, _)| cluster_roles.is_other_cluster(name))
            .peekable();
        if !self.has_begun && (!self.is_complete || others_wait.peek().is_some()) {
            return match self.is_complete && others_wait.all(|is_other_cluster| is_other_cluster) {
                true => SourceState::WaitingForOtherCluster,
                false => SourceState::Waiting,
            };
        }
        let is_trouble = |state: &SourceState| matches!(state, SourceState::Trouble { .. });
        let troubled = self.states.iter().filter(|(_, state)| is_trouble(state));
        let only_others = troubled.fold(true, |only, (name, _)| {
            only && cluster_roles.is_other_cluster(name)
        });
        let in_trouble = self.states.iter().filter_map(|(name, state)| match state {
            SourceState::Trouble {
                reason, absent: true, ..
            } => Some(format!(
                "{reason}: install it, or call `.when_installed()` (cluster {name})"
            )),
            SourceState::Trouble { reason, .. } => Some(format!("{reason} (cluster {name})")),
            _ => None,
        });
        let reason = in_trouble.collect::<Vec<_>>().join("; ");
        if reason.is_empty() {
            SourceState::Ready
        } else if only_others {
            SourceState::OtherClusterTrouble {
                reason,
                was_ready: self.states.values().all(SourceState::has_been_ready),
            }
        } else {
            SourceState::Trouble {
                reason,
                absent: false,
                was_ready: true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    fn by_cluster() -> (ClusterStates, watch::Receiver<Vec<SourceState>>) {
        let (sender, states) = watch::channel(vec![SourceState::Waiting]);
        let reporter = Reporter::new(&Arc::new(sender), 0);
        (ClusterStates::new(reporter, ClusterRoles::default()), states)
    }

    fn is(states: &watch::Receiver<Vec<SourceState>>) -> SourceState {
        states.borrow()[0].clone()
    }

    #[test]
    fn a_failing_cluster_delays_no_other_and_is_named() {
        let (by_cluster, states) = by_cluster();
        let (a, b) = (ClusterName::from("a"), ClusterName::from("b"));
        by_cluster.set(&a, SourceState::Ready);
        by_cluster.set(&b, SourceState::Waiting);
        by_cluster.complete();
        assert_eq!(is(&states), SourceState::Waiting);
        let trouble = SourceState::Trouble {
            reason: "pods/v1: unreachable".to_owned(),
            absent: false,
            was_ready: false,
        };
        by_cluster.set(&b, trouble);
        let SourceState::Trouble {
            was_ready, reason, ..
        } = is(&states)
        else {
            panic!("trouble is not hidden");
        };
        assert!(was_ready && reason.ends_with("(cluster b)"), "{reason}");
        by_cluster.remove(&b);
        assert_eq!(is(&states), SourceState::Ready);
    }

    #[test]
    fn the_error_of_a_cluster_without_the_kind_names_when_installed() {
        let (by_cluster, states) = by_cluster();
        by_cluster.set(&ClusterName::from("a"), SourceState::Ready);
        let absent = SourceState::Trouble {
            reason: "widgets/v1: the server does not have it".to_owned(),
            absent: true,
            was_ready: false,
        };
        by_cluster.set(&ClusterName::from("b"), absent);
        by_cluster.complete();
        let SourceState::Trouble { reason, absent, .. } = is(&states) else {
            panic!("trouble is not hidden");
        };
        assert!(
            reason.contains(".when_installed()") && reason.ends_with("(cluster b)"),
            "{reason}"
        );
        assert!(!absent, "the other one goes on");
    }

    #[test]
    fn a_cluster_that_is_added_later_delays_nothing() {
        let (by_cluster, states) = by_cluster();
        assert_eq!(is(&states), SourceState::Waiting);
        by_cluster.complete();
        assert_eq!(is(&states), SourceState::Ready, "there are none");
        by_cluster.set(&ClusterName::from("a"), SourceState::Waiting);
        assert_eq!(is(&states), SourceState::Ready);
    }
}
