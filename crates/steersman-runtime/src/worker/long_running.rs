// SPDX-License-Identifier: Apache-2.0
//! Warns of reconciles that take long.

use std::{collections::HashSet, fmt};

use steersman_queue::{Stage, Status};

use super::WorkerPool;
use crate::RequestKey;

/// Maximum number of keys in one log line.
const NAMED_MAX: usize = 10;

/// Keys of a log line.
pub(super) struct Keys<'a, R>(pub(super) &'a [Status<R>]);

impl<R: RequestKey> WorkerPool<R> {
    /// Logs each reconcile that takes longer than the limit, and counts them. Never returns.
    pub(crate) async fn watch_long_running(&self) {
        let (Some(limit), Some(series)) = (self.run.plan.options.warn_limit(), self.run.plan.series.get())
        else {
            return std::future::pending().await;
        };
        let clock = self.run.plan.home.clock();
        let mut logged = HashSet::new();
        loop {
            let now = clock.now();
            let due = self
                .run
                .plan
                .queue
                .in_flight()
                .into_iter()
                .map(|status| match status.stage() {
                    Stage::InFlight { since, .. } => (status.into_key(), since, since + limit),
                    _ => (status.into_key(), now, now + limit),
                });
            let (long, short): (Vec<_>, Vec<_>) = due.partition(|(_, _, due)| *due <= now);
            series.long_running.set(long.len() as i64);
            let is_new = |(key, since, _): &&(R, _, _)| !logged.contains(&(key.clone(), *since));
            for (key, since, _) in long.iter().filter(is_new) {
                tracing::warn!(
                    controller = %self.run.plan.name,
                    cluster = key.cluster().map(tracing::field::display),
                    kind = self.run.plan.primary.as_ref().map(tracing::field::display),
                    %key,
                    running_for = ?now.saturating_since(*since),
                    long_running = long.len(),
                    workers = self.run.plan.options.worker_count(),
                    hint = "`reconcile_timeout` cancels such a reconcile, `reconcile_warn_after` sets when to warn",
                    "reconcile is still running"
                );
            }
            logged = long.into_iter().map(|(key, since, _)| (key, since)).collect();
            // A reconcile that begins later is not due before that.
            let next = short
                .into_iter()
                .map(|(_, _, due)| due)
                .fold(now + limit, Ord::min);
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = self.long_ended.notified() => {}
            }
        }
    }
}

impl<R: RequestKey> fmt::Display for Keys<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, status) in self.0.iter().take(NAMED_MAX).enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}{}", status.key())?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
