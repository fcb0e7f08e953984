// SPDX-License-Identifier: Apache-2.0
//! Tracks whether a cluster has a kind, and when that changes.
//!
//! One tracker for each cluster serves all subscribers, and runs while there is at least one. It watches
//! CustomResourceDefinitions and APIServices. A kind with a CRD is present while the CRD is Established and serves the
//! version. A kind without a CRD is absent if no APIService has its version. All other kinds are polled through
//! discovery, with the ETag of the last answer: versions of an aggregated API server, built-in kinds, all kinds if the
//! account is not allowed to watch CRDs, and all kinds except those of present CRDs if it is not allowed to watch
//! APIServices.
//!
//! # Guarantees
//! 1. A thousand subscribers cost as much as one: two watches, and at most one round of discovery per interval of 50 ms
//!    or more. A round is one request, or one for each group on a server without aggregated discovery. In addition, a
//!    kind with a CRD is probed until the server is ready to serve it: one or two small requests for each kind, sixteen
//!    at a time.
//! 2. An absent kind costs no requests if the account is allowed to watch both CRDs and APIServices, unless an
//!    APIService is for its version.
//! 3. An undetermined presence is [`Unknown`](Presence::Unknown): a failed discovery, a missing part of it, a server
//!    that does not answer. It is never treated as absence. A kind whose CRD could never be decoded is left to
//!    discovery.
//! 4. A kind stays present while its CRD is being deleted, until the CRD is removed, because finalizers have to be
//!    removed.
//! 5. A CRD that was recreated is another incarnation, even if the kind was never seen absent. If the account is not
//!    allowed to watch CRDs, this cannot be detected between two polls, unless the scope differs: watches of the
//!    objects show that they were deleted and created. Gaining or losing the permission to watch CRDs does not start
//!    another incarnation.
//! 6. A kind is reported as present once the server is ready to serve watches. After the CRD is Established, that takes
//!    some milliseconds, and the server can reject an earlier watch with a delay of one second.
//! 7. While the tracker runs, a cached read of a kind that is known to be absent returns at once without a
//!    request. An informer of it sends none until the kind is installed, which it notices at once.
//! 8. When the last subscriber is dropped, the watches close.

mod discovery;
mod index;
mod probe;
mod publisher;
mod tracker;

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use steersman_cache::{InformerContext, Resource};
use steersman_core::{Mutex, Presence, PresenceStatus};
use tokio::sync::watch;

use self::tracker::{Subscription, Tracker};
use crate::{Cluster, Mapper};

/// Default polling interval of discovery.
pub const POLL_EVERY: Duration = Duration::from_secs(10);

/// Minimum polling interval; shorter ones are raised to it.
const POLL_EVERY_MIN: Duration = Duration::from_millis(50);

/// Subscription to the presence of a kind; from [`Cluster::presence`].
pub struct PresenceWatch {
    presence_statuses: watch::Receiver<PresenceStatus>,
    _asked: Subscription,
}

/// The tracker of a cluster, if one is running.
#[derive(Default)]
pub(crate) struct Presences {
    tracker: Mutex<Weak<Tracker>>,
    changes: Arc<watch::Sender<()>>,
}

impl Presences {
    fn tracker(&self, context: &InformerContext, mapper: &Mapper) -> Arc<Tracker> {
        let mut tracker = self.tracker.lock();
        tracker.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Tracker::start(context, mapper, &self.changes));
            *tracker = Arc::downgrade(&started);
            started
        })
    }

    /// Returns the presence of a kind, or `Unknown` if no tracker runs.
    pub(crate) fn presence(&self, resource: &Resource) -> Presence {
        self.running()
            .map_or(Presence::Unknown, |tracker| tracker.presence(resource))
    }

    /// Returns a receiver that is notified when a presence might have changed.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn running(&self) -> Option<Arc<Tracker>> {
        let tracker = self.tracker.lock();
        tracker.upgrade()
    }
}

impl Cluster {
    /// Subscribes to the presence of a kind. If it has to be polled, the tracker uses the shortest interval of all
    /// subscribers, but at least 50 ms.
    ///
    /// ```no_run
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use steersman_cache::Resource;
    /// use steersman_cluster::{Cluster, POLL_EVERY};
    ///
    /// # async fn example(cluster: Cluster) {
    /// let mut presence = cluster.presence(&Resource::of::<Deployment>(), POLL_EVERY);
    /// presence.when(|presence_status| presence_status.is_present()).await;
    /// # }
    /// ```
    #[must_use]
    pub fn presence(&self, resource: &Resource, poll_every: Duration) -> PresenceWatch {
        let inner = self.inner();
        let tracker = inner.presences().tracker(inner.context(), inner.mapper());
        let (asked, presence_statuses) =
            Tracker::subscribe(&tracker, resource, poll_every.max(POLL_EVERY_MIN));
        PresenceWatch {
            presence_statuses,
            _asked: asked,
        }
    }

    /// Returns all kinds with a subscriber and their presence.
    #[must_use]
    pub fn presences(&self) -> Vec<(Resource, PresenceStatus)> {
        self.inner()
            .presences()
            .running()
            .map_or_else(Vec::new, |tracker| tracker.all())
    }
}

impl PresenceWatch {
    /// Returns the current presence.
    #[must_use]
    pub fn now(&self) -> PresenceStatus {
        self.presence_statuses.borrow().clone()
    }

    /// Waits until the presence satisfies `condition`, and returns it.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn when(&mut self, mut condition: impl FnMut(&PresenceStatus) -> bool) -> PresenceStatus {
        if let Ok(found) = self
            .presence_statuses
            .wait_for(|presence_status| condition(presence_status))
            .await
        {
            return found.clone();
        }
        // The cluster was dropped, and sends no more changes.
        std::future::pending().await
    }

    /// Waits for the next change after the last call of this or of `when`, and returns the presence.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn changed(&mut self) -> PresenceStatus {
        if self.presence_statuses.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.presence_statuses.borrow_and_update().clone()
    }
}

impl fmt::Debug for PresenceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PresenceWatch").field(&self.now()).finish()
    }
}

fn unknown(reason: impl Into<Arc<str>>) -> PresenceStatus {
    PresenceStatus::new(Presence::Unknown, reason)
}

fn pending(resource: &Resource) -> PresenceStatus {
    PresenceStatus::pending(format!("the presence of {resource} is not known yet"))
}
