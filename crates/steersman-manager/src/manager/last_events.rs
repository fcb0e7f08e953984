// SPDX-License-Identifier: Apache-2.0
//! Events that were recorded shortly before the end, such as that something was stopped.
//!
//! They are in a queue, and would be lost with the process, or held back once the lease is given up.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steersman_cluster::Cluster;
use steersman_core::{Clock, Moment};

/// They get no more time than this: what comes after them, such as giving the lease up, matters more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets the events of clusters be written, for half of the time that is left at most.
pub(super) async fn write(clusters: &[Cluster], clock: &Arc<dyn Clock>, deadline: Moment) {
    let now = clock.now();
    let time = PATIENCE.min(deadline.saturating_since(now) / 2);
    tokio::select! {
        biased;
        _ = join_all(clusters.iter().map(Cluster::flush_events)) => {}
        () = clock.sleep_until(now + time) => {
            tracing::warn!("events that were recorded last are not written in time");
        }
    }
}
