// SPDX-License-Identifier: Apache-2.0
//! Knowledge about the presence of kinds that needs no request.

use std::{fmt, sync::Arc};

use steersman_core::Presence;
use tokio::sync::watch;

use crate::Resource;

/// Knows whether the server has a kind, if a source was set.
#[derive(Clone)]
pub(crate) struct PresenceSource {
    presence: Arc<dyn Fn(&Resource) -> Presence + Send + Sync>,
    /// Notifies when the presence of kinds can have changed.
    changes: Option<watch::Receiver<()>>,
}

impl PresenceSource {
    pub(crate) fn new(
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Self {
        Self {
            presence: Arc::new(presence),
            changes: Some(changes),
        }
    }

    /// Returns the known presence of a kind.
    pub(crate) fn presence(&self, resource: &Resource) -> Presence {
        (self.presence)(resource)
    }

    /// Returns the known presence of a kind, and marks it as seen for [`changed`](Self::changed).
    pub(crate) fn look(&mut self, resource: &Resource) -> Presence {
        self.changes.iter_mut().for_each(watch::Receiver::mark_unchanged);
        self.presence(resource)
    }

    /// Waits until the presence of kinds can have changed.
    pub(crate) async fn changed(&mut self) {
        let changed = match &mut self.changes {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending().await
        }
    }
}

/// Without a source, presence is always unknown.
impl Default for PresenceSource {
    fn default() -> Self {
        Self {
            presence: Arc::new(|_| Presence::Unknown),
            changes: None,
        }
    }
}

impl fmt::Debug for PresenceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresenceSource")
    }
}
