// SPDX-License-Identifier: Apache-2.0
//! Whether this replica leads, and waiting for it.

use crate::Leadership;
use tokio::sync::watch;

use super::Manager;

/// Waits until the leadership that is found in what is told gives a term. It is looked for anew whenever that changes.
pub(super) async fn elected<T>(mut told: watch::Receiver<T>, find: impl Fn(&T) -> Option<Leadership>) {
    loop {
        let leadership = find(&told.borrow_and_update());
        let elected = async {
            match &leadership {
                Some(leadership) => drop(leadership.term().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = elected => return,
            changed = told.changed() => if changed.is_err() {
                // Nobody is left who could lead.
                return std::future::pending().await;
            },
        }
    }
}

impl Manager {
    /// Waits until this replica leads: at once where there is no election, once the manager runs. If that run ends without
    /// having led, one that follows counts. Where there is
    /// [a lease for each](crate::Election::per_runnable) no replica leads as a whole, and this waits for ever:
    /// [`elected_in`](Self::elected_in) is for that.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn elected(&self) {
        // A run may end without it, and another may lead.
        elected(self.0.leadership.subscribe(), Option::clone).await;
    }

    /// Waits until this replica leads in what the runnable of this name does. That is different from
    /// [`elected`](Self::elected) only where there is [a lease for each](crate::Election::per_runnable).
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn elected_in(&self, runnable: &str) {
        match &self.0.own_leases {
            Some(_) => self.0.leads.elected(runnable).await,
            None => self.elected().await,
        }
    }

    /// Waits until this replica does not lead, which is so from the start. Together with [`elected`](Self::elected) it
    /// lets one follow who leads.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn deposed(&self) {
        let leadership = self.0.leadership.borrow().clone();
        if let Some(leadership) = leadership {
            leadership.vacant().await;
        }
    }

    /// Whether this replica leads now. Where there is [a lease for each](crate::Election::per_runnable) no replica does;
    /// see [`leads`](Self::leads).
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.0
            .leadership
            .borrow()
            .as_ref()
            .is_some_and(Leadership::is_leading)
    }

    /// Whether this replica leads now in what the runnable of this name does. That is different from
    /// [`is_leading`](Self::is_leading) only where there is [a lease for each](crate::Election::per_runnable).
    #[must_use]
    pub fn leads(&self, runnable: &str) -> bool {
        match &self.0.own_leases {
            Some(_) => self.0.leads.is_leading(runnable).unwrap_or(false),
            None => self.is_leading(),
        }
    }
}
