// SPDX-License-Identifier: Apache-2.0
//! Conditions on which a runnable runs.
//!
//! A condition is a plan: each run of its runnable makes a stream of states from it. A condition that cannot be evaluated
//! is unknown, which starts nothing and stops nothing.

mod debounce;
mod object;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream, stream::BoxStream};
use serde::de::DeserializeOwned;
use steersman_cache::Resource;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, ObjectKey, Presence, PresenceStatus, error_chain};

use self::{debounce::debounce, object::watch_object};
use crate::{BoxError, KnownKind, cache_sync::Installed, source::INTERVAL_MIN};

/// Decides when a runnable runs. It is cheap to clone.
///
/// ```no_run
/// use std::time::Duration;
/// use k8s_openapi::api::{core::v1::ConfigMap, networking::v1::Ingress};
/// use steersman_cluster::Cluster;
/// use steersman_runtime::RunCondition;
/// use steersman_core::ObjectKey;
///
/// fn only_if_wanted(cluster: &Cluster) -> RunCondition {
///     let flag = RunCondition::object_is(cluster, ObjectKey::new("ops", "flags"), |flags: &ConfigMap| {
///         flags.data.as_ref().is_some_and(|data| data.get("ingress").is_some_and(|flag| flag == "on"))
///     });
///     RunCondition::installed::<Ingress>(cluster).and(flag).debounce(Duration::from_secs(1))
/// }
/// ```
#[derive(Clone)]
pub struct RunCondition {
    name: Arc<str>,
    clusters: Vec<ClusterName>,
    /// The kinds that have to be installed, if the condition depends on nothing else.
    kinds: Option<Vec<Installed>>,
    watch: Arc<Watching>,
}

type Watching = dyn Fn(&Arc<dyn Clock>) -> PresenceStream + Send + Sync;
type PresenceStream = BoxStream<'static, PresenceStatus>;

impl RunCondition {
    /// Makes a condition of a stream, which `watch` makes anew for each run. It is unknown until the first item, and keeps
    /// its last value when the stream ends.
    pub fn from_stream<S>(name: impl Into<Arc<str>>, watch: impl Fn() -> S + Send + Sync + 'static) -> Self
    where
        S: Stream<Item = PresenceStatus> + Send + 'static,
    {
        Self::new(name.into(), Vec::new(), move |_| watch().boxed())
    }

    /// Polls `check` at an interval of at least 1 ms. An error makes the condition unknown until the next poll.
    pub fn poll<F, Fut, E>(name: impl Into<Arc<str>>, every: Duration, check: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<bool, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let (name, every) = (name.into(), every.max(INTERVAL_MIN));
        let check = Arc::new(check);
        let called = Arc::clone(&name);
        Self::new(name, Vec::new(), move |clock| {
            let (check, clock, name) = (Arc::clone(&check), Arc::clone(clock), Arc::clone(&called));
            let asked = stream::unfold(true, move |is_first| {
                let (check, clock, name) = (Arc::clone(&check), Arc::clone(&clock), Arc::clone(&name));
                async move {
                    if !is_first {
                        clock.sleep_until(clock.now() + every).await;
                    }
                    let presence_status = match check().await {
                        Ok(holds) => PresenceStatus::new(Presence::from(holds), format!("{name} is {holds}")),
                        Err(error) => {
                            let error = error.into();
                            PresenceStatus::new(
                                Presence::Unknown,
                                format!("{name} is unknown: {}", error_chain(&*error)),
                            )
                        }
                    };
                    Some((presence_status, false))
                }
            });
            asked.boxed()
        })
    }

    /// Holds while a kind is installed in the cluster.
    #[must_use]
    pub fn installed<K: KnownKind>(cluster: &Cluster) -> Self {
        Self::present(cluster, Resource::of::<K>(), steersman_cluster::POLL_EVERY)
    }

    /// Holds while a kind that is known only at run time is installed in the cluster. If presence cannot be watched, it is
    /// polled, at an interval of at least 50 ms.
    #[must_use]
    pub fn present(cluster: &Cluster, resource: Resource, poll_every: Duration) -> Self {
        let name = format!("{resource} is installed");
        let kind = Installed::new(cluster, &resource, poll_every);
        let (cluster, named) = (cluster.clone(), cluster.name().clone());
        let watched = Self::new(name.into(), vec![named], move |_| {
            let presence = cluster.presence(&resource, poll_every);
            let first = Some(presence.now());
            let presence_statuses = stream::unfold((presence, first), |(mut presence, first)| async move {
                let presence_status = match first {
                    Some(first) => first,
                    None => presence.changed().await,
                };
                Some((presence_status, (presence, None)))
            });
            presence_statuses.boxed()
        });
        Self {
            kinds: Some(vec![kind]),
            ..watched
        }
    }

    /// Holds while an object exists. The condition watches that one object.
    #[must_use]
    pub fn object_exists<K: KnownKind + DeserializeOwned + Send + Sync + 'static>(
        cluster: &Cluster,
        key: ObjectKey,
    ) -> Self {
        Self::object_is(cluster, key, |_: &K| true)
    }

    /// Holds while an object exists and `holds` returns true for it. The condition watches that one object. It is unknown
    /// while the object cannot be decoded, or was never read because of errors. If the kind is not installed, the object
    /// does not exist.
    #[must_use]
    pub fn object_is<K: KnownKind + DeserializeOwned + Send + Sync + 'static>(
        cluster: &Cluster,
        key: ObjectKey,
        holds: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) -> Self {
        let name = format!("{} {key}", Resource::of::<K>());
        let named = cluster.name().clone();
        let cluster = cluster.clone();
        let holds: Arc<dyn Fn(&K) -> bool + Send + Sync> = Arc::new(holds);
        Self::new(name.into(), vec![named], move |_| {
            watch_object(&cluster, &key, &holds)
        })
    }

    fn new(
        name: Arc<str>,
        clusters: Vec<ClusterName>,
        watch: impl Fn(&Arc<dyn Clock>) -> PresenceStream + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            clusters,
            kinds: None,
            watch: Arc::new(watch),
        }
    }

    /// Holds while both hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let kinds = self.kinds.clone().zip(other.kinds.clone());
        Self {
            kinds: kinds.map(|(one, other)| [one, other].concat()),
            ..self.combine(other, "and", PresenceStatus::and)
        }
    }

    /// Holds while at least one of them holds.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.combine(other, "or", PresenceStatus::or)
    }

    /// Delays each change until it has lasted this long. The first answer counts at once; an unknown state at the start is
    /// not an answer.
    #[must_use]
    pub fn debounce(self, lasting: Duration) -> Self {
        let Self {
            name,
            clusters,
            watch,
            ..
        } = self;
        Self::new(name, clusters, move |clock| {
            debounce(watch(clock), Arc::clone(clock), lasting)
        })
    }

    /// Name of the condition.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Clusters that the condition depends on.
    pub(crate) fn clusters(&self) -> &[ClusterName] {
        &self.clusters
    }

    /// Kinds that have to be installed, if the condition depends on nothing else.
    pub(crate) fn kinds(&self) -> Option<&[Installed]> {
        self.kinds.as_deref()
    }

    /// Watches the condition for one run.
    #[must_use]
    pub fn watch(&self, clock: &Arc<dyn Clock>) -> BoxStream<'static, PresenceStatus> {
        (self.watch)(clock).fuse().boxed()
    }

    fn combine(
        self,
        other: Self,
        word: &str,
        combine: fn(&PresenceStatus, &PresenceStatus) -> PresenceStatus,
    ) -> Self {
        let name = format!("({} {word} {})", self.name, other.name);
        let clusters = self.clusters.iter().chain(&other.clusters).cloned().collect();
        Self::new(name.into(), clusters, move |clock| {
            either(self.watch(clock), other.watch(clock), combine)
        })
    }
}

/// Negates the condition.
impl std::ops::Not for RunCondition {
    type Output = Self;

    fn not(self) -> Self {
        let name = format!("not {}", self.name);
        Self::new(name.into(), self.clusters.clone(), move |clock| {
            self.watch(clock).map(|presence_status| !presence_status).boxed()
        })
    }
}

impl fmt::Debug for RunCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunCondition").field(&self.name).finish()
    }
}

fn unknown() -> PresenceStatus {
    PresenceStatus::pending("not evaluated yet")
}

/// Combines two streams. A stream that ends keeps its last value.
fn either(
    one: PresenceStream,
    other: PresenceStream,
    combine: fn(&PresenceStatus, &PresenceStatus) -> PresenceStatus,
) -> PresenceStream {
    let tagged = stream::select(
        one.map(|presence_status| (0, presence_status)),
        other.map(|presence_status| (1, presence_status)),
    );
    let mut last = [unknown(), unknown()];
    tagged
        .map(move |(index, presence_status)| {
            last[index] = presence_status;
            combine(&last[0], &last[1])
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use steersman_core::Presence::{Absent, Present, Unknown};
    use steersman_core::TestClock;
    use tokio::sync::watch;

    use super::*;

    pub(super) fn reported(name: &'static str) -> (watch::Sender<Presence>, RunCondition) {
        let (sender, receiver) = watch::channel(Unknown);
        let condition = RunCondition::from_stream(name, move || {
            let mut receiver = receiver.clone();
            receiver.mark_changed();
            stream::unfold(receiver, |mut receiver| async move {
                receiver.changed().await.ok()?;
                let presence = *receiver.borrow_and_update();
                Some((PresenceStatus::new(presence, "reported"), receiver))
            })
        });
        (sender, condition)
    }

    pub(super) fn clock() -> (TestClock, Arc<dyn Clock>) {
        let clock = TestClock::new();
        (clock.clone(), Arc::new(clock))
    }

    /// Returns the last item that the stream has now.
    pub(super) fn newest(presence_statuses: &mut PresenceStream) -> Option<Presence> {
        let mut last = None;
        while let Some(Some(presence_status)) = presence_statuses.next().now_or_never() {
            last = Some(presence_status.presence);
        }
        last
    }

    // R28
    #[test]
    fn conditions_combine_over_three_values() {
        let (_, clock) = clock();
        let ((a, first), (b, second)) = (reported("a"), reported("b"));
        let mut both = first.clone().and(second.clone()).watch(&clock);
        let mut one = first.or(!second).watch(&clock);
        assert_eq!(newest(&mut both), Some(Unknown));
        a.send_replace(Present);
        assert_eq!(
            (newest(&mut both), newest(&mut one)),
            (Some(Unknown), Some(Present))
        );
        b.send_replace(Absent);
        assert_eq!(
            (newest(&mut both), newest(&mut one)),
            (Some(Absent), Some(Present))
        );
        a.send_replace(Absent);
        b.send_replace(Present);
        assert_eq!(
            (newest(&mut both), newest(&mut one)),
            (Some(Absent), Some(Absent))
        );
    }

    #[test]
    fn a_stream_that_has_ended_is_not_polled_again() {
        let (_, clock) = clock();
        let once = RunCondition::from_stream("once", || {
            stream::unfold(true, |is_first| async move {
                is_first.then(|| (PresenceStatus::new(Present, "reported"), false))
            })
        });
        let mut watched = once.watch(&clock);
        assert_eq!(newest(&mut watched), Some(Present));
        assert_eq!(newest(&mut watched), None);
        assert_eq!(newest(&mut watched), None);
        let (_sender, other) = reported("other");
        let mut both = once.and(other).watch(&clock);
        assert_eq!(newest(&mut both), Some(Unknown));
        assert_eq!(newest(&mut both), None);
    }

    #[test]
    fn a_check_without_an_interval_leaves_others_a_turn() {
        let (time, clock) = clock();
        let condition = RunCondition::poll("flag", Duration::ZERO, || async { Ok::<_, BoxError>(true) });
        let mut asked = condition.watch(&clock);
        for _ in 0..3 {
            assert_eq!(newest(&mut asked), Some(Present));
            assert_eq!(newest(&mut asked), None);
            time.advance(INTERVAL_MIN);
        }
    }

    #[test]
    fn a_check_that_fails_is_unknown_and_repeated() {
        let (time, clock) = clock();
        let answers = Arc::new(std::sync::Mutex::new(vec![Ok(false), Err("broken"), Ok(true)]));
        let condition = RunCondition::poll("flag", Duration::from_secs(1), move || {
            let answer = answers.lock().unwrap().pop().unwrap_or(Ok(true));
            async move { answer }
        });
        let mut asked = condition.watch(&clock);
        assert_eq!(newest(&mut asked), Some(Present));
        time.advance(Duration::from_secs(1));
        assert_eq!(newest(&mut asked), Some(Unknown));
        time.advance(Duration::from_secs(1));
        assert_eq!(newest(&mut asked), Some(Absent));
    }
}
