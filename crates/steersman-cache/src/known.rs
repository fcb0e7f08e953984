// SPDX-License-Identifier: Apache-2.0
//! What somebody knows of kinds without asking the server.

use std::{fmt, sync::Arc};

use steersman_core::Presence;
use tokio::sync::watch;

use crate::Resource;

/// Knows whether the server has a kind, if somebody does.
#[derive(Clone)]
pub(crate) struct Known {
    presence: Arc<dyn Fn(&Resource) -> Presence + Send + Sync>,
    /// Says that something may be known differently.
    changes: Option<watch::Receiver<()>>,
}

impl Known {
    pub(crate) fn new(
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Self {
        Self {
            presence: Arc::new(presence),
            changes: Some(changes),
        }
    }

    /// What is known of a kind now.
    pub(crate) fn presence(&self, resource: &Resource) -> Presence {
        (self.presence)(resource)
    }

    /// What is known of a kind now. [`changed`](Self::changed) then waits for something else.
    pub(crate) fn look(&mut self, resource: &Resource) -> Presence {
        self.changes.iter_mut().for_each(watch::Receiver::mark_unchanged);
        self.presence(resource)
    }

    /// Waits until something may be known differently.
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

/// Nobody knows anything.
impl Default for Known {
    fn default() -> Self {
        Self {
            presence: Arc::new(|_| Presence::Unknown),
            changes: None,
        }
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}
