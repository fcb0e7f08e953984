// SPDX-License-Identifier: Apache-2.0
//! A leader's watch of its own lease.
//!
//! Renewals detect that a lease was deleted or taken, but only when the next one is due. Meanwhile a candidate that never
//! saw the lease can create it, and there are two leaders. Through the watch the former leader learns of it at once.

use futures::StreamExt;
use kube::core::DynamicObject;
use steersman_core::{MonotonicTime, error_chain};

use super::{
    elector::{Elector, Watching},
    lock::LeaseEvent,
    record::Record,
};

/// Watches the lease during one term. If that is forbidden or fails, renewals have to detect changes.
pub(super) struct Follower {
    watching: Option<Watching>,
    /// Time at which the next watch is opened; `None` if watching is forbidden.
    opens: Option<MonotonicTime>,
}

/// A change of the lease by another client.
pub(super) enum Changed {
    Deleted,
    /// The lease has another holder, or none.
    Taken(Record),
}

impl Follower {
    pub(super) fn new(now: MonotonicTime) -> Self {
        Self {
            watching: None,
            opens: Some(now),
        }
    }

    /// Waits until the lease is deleted or taken. A new watch begins at `lease`.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time; the next call continues.
    pub(super) async fn changed(&mut self, elector: &Elector, lease: &DynamicObject) -> Changed {
        loop {
            let Some(watching) = &mut self.watching else {
                let Some(opens) = self.opens else {
                    return std::future::pending().await;
                };
                elector.clock.sleep_until(opens).await;
                self.watching = Some(Box::pin(elector.lock.watch(Some(lease))));
                continue;
            };
            match watching.next().await {
                Some(Ok(LeaseEvent::Is(None))) => return Changed::Deleted,
                Some(Ok(LeaseEvent::Is(Some(lease)))) => {
                    let record = Record::of(&lease);
                    if !elector.is_own(&record) {
                        return Changed::Taken(record);
                    }
                }
                over => {
                    let error = over.and_then(Result::err);
                    if let Some(error) = &error {
                        tracing::debug!(lease = %elector.name(), error = %error_chain(error), "failed to watch own lease");
                    }
                    let is_forbidden = error.is_some_and(|error| error.is_forbidden());
                    self.watching = None;
                    self.opens = (!is_forbidden).then(|| elector.clock.now() + elector.jittered());
                }
            }
        }
    }
}
