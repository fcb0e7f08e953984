// SPDX-License-Identifier: Apache-2.0
//! Whether a cluster has a kind, and when that changes.
//!
//! One tracker for each cluster learns it for everybody who asks, as long as somebody does. It watches
//! CustomResourceDefinitions and APIServices. A kind that a definition explains is present while the definition is
//! Established and serves the version; one that no definition explains is absent if no APIService has its version. What is
//! left is asked for by discovery, at an interval, with the tag of the last answer: versions that a server of its own has,
//! built-in kinds, everything where definitions may not be watched, and all but present definitions where APIServices may
//! not be.
//!
//! # Guarantees
//! 1. A thousand who ask cost what one does: two watches, and at most one round of discovery at an interval of 50 ms or
//!    more, which is one question, or one for each group of a server that has no list of all groups. Besides, a kind that is
//!    defined is asked for until the server is ready with it: one or two small requests for each, sixteen at a time.
//! 2. A kind that is absent costs no requests where definitions and APIServices may both be watched, unless one of the
//!    latter is for its version.
//! 3. What cannot be told is [`Unknown`](Presence::Unknown): a broken discovery, a part of it that is missing, a server
//!    that does not answer. It is never taken for absence.
//! 4. A kind stays present while its definition is being deleted, until that is gone, since finalizers have to be removed.
//! 5. A definition that was made anew is another incarnation, also if nobody saw it absent. Where definitions may not be
//!    watched, that cannot be told between two questions, unless it has another scope: those who watch the objects see
//!    them go and come. A permission to watch definitions that comes or goes makes no other incarnation.
//! 6. A kind is called present once the server is ready for those who watch it: after a definition is Established that
//!    takes some more milliseconds, and whoever asks too early may be told to come back in a second.
//! 7. As long as somebody asks, a cached read of a kind that is known to be absent says so without a request, and an
//!    informer of it sends none until the kind is there, which it notices at once.
//! 8. When the last who asks is gone, the watches close.

mod discovery;
mod index;
mod probe;
mod publisher;
mod tracker;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use steersman_cache::{InformerContext, Resource};
use steersman_core::{Presence, Sighting};
use tokio::sync::watch;

use self::tracker::{Asked, Tracker};
use crate::{Cluster, Mapper};

/// How often discovery is asked by default.
pub const POLL_EVERY: Duration = Duration::from_secs(10);

/// No interval is shorter, whatever is asked for.
const POLL_EVERY_MIN: Duration = Duration::from_millis(50);

/// Tells whether a cluster has a kind, as long as it is held; from [`Cluster::presence`].
pub struct PresenceWatch {
    sightings: watch::Receiver<Sighting>,
    _asked: Asked,
}

/// What a cluster has for its tracker, while there is none.
#[derive(Default)]
pub(crate) struct Presences {
    tracker: Mutex<Weak<Tracker>>,
    changes: Arc<watch::Sender<()>>,
}

impl Presences {
    fn tracker(&self, surroundings: &InformerContext, mapper: &Mapper) -> Arc<Tracker> {
        let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
        tracker.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Tracker::start(surroundings, mapper, &self.changes));
            *tracker = Arc::downgrade(&started);
            started
        })
    }

    /// What is known of a kind, by somebody who follows what the cluster has.
    pub(crate) fn presence(&self, resource: &Resource) -> Presence {
        self.running()
            .map_or(Presence::Unknown, |tracker| tracker.presence(resource))
    }

    /// Says that something may be known differently.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn running(&self) -> Option<Arc<Tracker>> {
        let tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
        tracker.upgrade()
    }
}

impl Cluster {
    /// Follows whether the cluster has a kind. Where that has to be polled, it is at the shortest of the intervals that
    /// are asked for at the same time, and at most every 50 ms.
    ///
    /// ```no_run
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use steersman_cache::Resource;
    /// use steersman_cluster::{Cluster, POLL_EVERY};
    ///
    /// # async fn example(cluster: Cluster) {
    /// let mut presence = cluster.presence(&Resource::of::<Deployment>(), POLL_EVERY);
    /// presence.when(|sighting| sighting.is_present()).await;
    /// # }
    /// ```
    #[must_use]
    pub fn presence(&self, resource: &Resource, poll_every: Duration) -> PresenceWatch {
        let inner = self.inner();
        let tracker = inner.presences().tracker(inner.surroundings(), inner.mapper());
        let (asked, sightings) = Tracker::ask(&tracker, resource, poll_every.max(POLL_EVERY_MIN));
        PresenceWatch {
            sightings,
            _asked: asked,
        }
    }

    /// The kinds that somebody follows, and how they stand.
    #[must_use]
    pub fn presences(&self) -> Vec<(Resource, Sighting)> {
        self.inner()
            .presences()
            .running()
            .map_or_else(Vec::new, |tracker| tracker.all())
    }
}

impl PresenceWatch {
    /// How it stands now.
    #[must_use]
    pub fn now(&self) -> Sighting {
        self.sightings.borrow().clone()
    }

    /// Waits until it stands so, and gives how.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn when(&mut self, mut condition: impl FnMut(&Sighting) -> bool) -> Sighting {
        if let Ok(found) = self.sightings.wait_for(|sighting| condition(sighting)).await {
            return found.clone();
        }
        // The cluster is gone, and nobody will tell.
        std::future::pending().await
    }

    /// Waits until it stands differently than when this was asked last, and gives how.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn changed(&mut self) -> Sighting {
        if self.sightings.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.sightings.borrow_and_update().clone()
    }
}

impl fmt::Debug for PresenceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PresenceWatch").field(&self.now()).finish()
    }
}

fn unknown(reason: impl Into<Arc<str>>) -> Sighting {
    Sighting::new(Presence::Unknown, reason)
}

fn pending(resource: &Resource) -> Sighting {
    Sighting::pending(format!("whether {resource} is installed is not known yet"))
}
