// SPDX-License-Identifier: Apache-2.0
//! Leadership of this replica: query it, and wait for it.

use crate::Leadership;
use tokio::sync::watch;

use super::Manager;

/// Waits until the leadership that `find` returns gives a term. `find` is called again for each change.
pub(super) async fn elected<T>(mut changes: watch::Receiver<T>, find: impl Fn(&T) -> Option<Leadership>) {
    loop {
        let leadership = find(&changes.borrow_and_update());
        let elected = async {
            match &leadership {
                Some(leadership) => drop(leadership.term().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = elected => return,
            changed = changes.changed() => if changed.is_err() {
                // No leadership can begin any more.
                return std::future::pending().await;
            },
        }
    }
}

impl Manager {
    /// Waits until this replica leads. Without an election, it leads once the manager runs. If a run ends without
    /// leadership, the wait continues with the next run. With [a lease for each](crate::Election::per_runnable) runnable,
    /// no replica leads as a whole, and this waits for ever: use [`elected_in`](Self::elected_in) instead.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn elected(&self) {
        // A run can end without leadership, and the next one can lead.
        elected(self.0.leadership.subscribe(), Option::clone).await;
    }

    /// Waits until this replica leads for the runnable of this name. Differs from [`elected`](Self::elected) only with [a
    /// lease for each](crate::Election::per_runnable) runnable.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn elected_in(&self, runnable: &str) {
        match &self.0.own_leases {
            Some(_) => self.0.leads.elected(runnable).await,
            None => self.elected().await,
        }
    }

    /// Waits until this replica does not lead, which is also the initial state. Use it together with
    /// [`elected`](Self::elected) to follow leadership.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn leadership_lost(&self) {
        let leadership = self.0.leadership.borrow().clone();
        if let Some(leadership) = leadership {
            leadership.vacant().await;
        }
    }

    /// Returns true if this replica leads now. Always false with [a lease for each](crate::Election::per_runnable)
    /// runnable; see [`leads`](Self::leads).
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.0
            .leadership
            .borrow()
            .as_ref()
            .is_some_and(Leadership::is_leading)
    }

    /// Returns true if this replica leads now for the runnable of this name. Differs from [`is_leading`](Self::is_leading)
    /// only with [a lease for each](crate::Election::per_runnable) runnable.
    #[must_use]
    pub fn leads(&self, runnable: &str) -> bool {
        match &self.0.own_leases {
            Some(_) => self.0.leads.is_leading(runnable).unwrap_or(false),
            None => self.is_leading(),
        }
    }
}
