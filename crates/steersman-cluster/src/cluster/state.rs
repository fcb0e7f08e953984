// SPDX-License-Identifier: Apache-2.0
//! State of the connection to a cluster.

use std::{fmt, sync::Arc};

use futures::future::{self, select_all};
use steersman_cache::{Health, Informer};

use super::{Cluster, Inner};
use crate::transport::Contact;

/// State of the connection to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterState {
    /// The server has not answered yet.
    Connecting,
    /// The server has answered, and an informer waits for its first list.
    Syncing,
    /// The server answers, and all informers are in sync.
    Ready,
    /// A request or an informer fails, and is being retried.
    Degraded {
        /// Cause.
        reason: Arc<str>,
    },
    /// [`drain`](Cluster::drain) or [`close`](Cluster::close) was called.
    Draining,
}

impl ClusterState {
    /// Names of all states.
    pub const NAMES: [&'static str; 5] = ["connecting", "syncing", "ready", "degraded", "draining"];

    /// Returns the name of the state, without the reason.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Syncing => "syncing",
            Self::Ready => "ready",
            Self::Degraded { .. } => "degraded",
            Self::Draining => "draining",
        }
    }

    /// Reports whether the state is [`Ready`](Self::Ready).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self == Self::Ready
    }
}

impl fmt::Display for ClusterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Degraded { reason } => write!(f, ": {reason}"),
            _ => Ok(()),
        }
    }
}

impl Cluster {
    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> ClusterState {
        self.0.look().1
    }

    /// Waits until the state satisfies `condition`, and returns it.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn state_when(&self, mut condition: impl FnMut(&ClusterState) -> bool) -> ClusterState {
        // Subscribes before the first check, so that no change is missed in between.
        let mut contact = self.0.shared.meter.contact();
        let mut informers = self.0.cache.changes();
        let mut draining = self.0.draining.subscribe();
        loop {
            contact.mark_unchanged();
            informers.mark_unchanged();
            draining.mark_unchanged();
            let (seen, state) = self.0.look();
            if condition(&state) {
                return state;
            }
            let changed = seen
                .iter()
                .map(|(informer, was)| Box::pin(informer.health_when(move |health| health != was)));
            let any_health = async {
                match seen.is_empty() {
                    true => future::pending().await,
                    false => select_all(changed).await.0,
                }
            };
            tokio::select! {
                biased;
                // Draining is the last state: waiting for another one never returns.
                _ = self.0.shared.gate.closed(), if state != ClusterState::Draining => {}
                _ = draining.changed() => {}
                _ = contact.changed() => {}
                _ = informers.changed() => {}
                _ = any_health => {}
            }
        }
    }
}

impl Inner {
    /// Returns the state and the informers that it is derived from.
    fn look(&self) -> (Vec<(Informer, Health)>, ClusterState) {
        let informers = self.cache.informers().into_iter();
        let seen: Vec<_> = informers
            .map(|informer| {
                let health = informer.health();
                (informer, health)
            })
            // Ignores informers that were stopped.
            .filter(|(_, health)| !health.ended)
            .collect();
        let state = if *self.draining.borrow() || self.shared.gate.check().is_err() {
            ClusterState::Draining
        } else {
            state_of(
                &self.shared.meter.contact().borrow(),
                self.shared.credentials.place(),
                &seen,
            )
        };
        (seen, state)
    }
}

fn state_of(contact: &Contact, credentials: &str, informers: &[(Informer, Health)]) -> ClusterState {
    let in_trouble = informers.iter().filter_map(|(informer, health)| {
        let trouble = health.error.as_ref()?;
        Some(format!("{}: {trouble}", informer.resource()))
    });
    // Sorted by name, so that the same problem has the same reason each time.
    match (contact, in_trouble.min()) {
        (Contact::Lost { reason }, _) => ClusterState::Degraded {
            reason: format!("the server does not answer: {reason}").into(),
        },
        (Contact::NoCredentials { reason }, _) => ClusterState::Degraded {
            reason: Arc::clone(reason),
        },
        (Contact::Refused, _) => ClusterState::Degraded {
            reason: format!("the server rejects the credentials (401 Unauthorized): {credentials}").into(),
        },
        (_, Some(trouble)) => ClusterState::Degraded {
            reason: trouble.into(),
        },
        (Contact::None, None) => ClusterState::Connecting,
        (Contact::Made, None) if informers.iter().any(|(_, health)| !health.synced) => ClusterState::Syncing,
        (Contact::Made, None) => ClusterState::Ready,
    }
}
