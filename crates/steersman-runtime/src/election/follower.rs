// SPDX-License-Identifier: Apache-2.0
//! A leader's watch of its own lease.
//!
//! Renewals find out that a lease was deleted or taken, but only when the next one is due. Meanwhile a candidate that never
//! saw the lease can create it, and there are two leaders. By the watch the former one learns of it at once.

use futures::StreamExt;
use kube::core::DynamicObject;
use steersman_core::{MonotonicTime, error_chain};

use super::{
    elector::{Elector, Watching},
    lock::Told,
    record::Record,
};

/// Follows the lease of one term. Where that is forbidden or fails, renewals have to do.
pub(super) struct Follower {
    watching: Option<Watching>,
    /// When the next watch is opened; nothing if watching is forbidden.
    opens: Option<MonotonicTime>,
}

/// A change of the lease that this replica did not make.
pub(super) enum Changed {
    Deleted,
    /// It has a record of another holder, or of none.
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
    /// It can be dropped at any time, and goes on where it was.
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
                Some(Ok(Told::Is(None))) => return Changed::Deleted,
                Some(Ok(Told::Is(Some(lease)))) => {
                    let record = Record::of(&lease);
                    if !elector.is_own(&record) {
                        return Changed::Taken(record);
                    }
                }
                over => {
                    let error = over.and_then(Result::err);
                    if let Some(error) = &error {
                        tracing::debug!(lease = %elector.name(), error = %error_chain(error), "failed to watch the own lease");
                    }
                    let is_forbidden = error.is_some_and(|error| error.is_forbidden());
                    self.watching = None;
                    self.opens = (!is_forbidden).then(|| elector.clock.now() + elector.jittered());
                }
            }
        }
    }
}
