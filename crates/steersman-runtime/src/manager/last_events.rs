// SPDX-License-Identifier: Apache-2.0
//! Events that were recorded shortly before the end, such as that something was stopped.
//!
//! They are in a queue, and would be lost with the process, or held back once the lease is given up.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, MonotonicTime};

/// They get no more time than this: what comes after them, such as giving the lease up, matters more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Before a lease is given up, events in other clusters than that of the lease get no more than this. A cluster that does not
/// answer must not delay the next leader.
const PATIENCE_ELSEWHERE: Duration = Duration::from_secs(1);

/// Lets the events of clusters be written, for half of the time that is left at most.
pub(super) async fn write(clusters: &[Cluster], clock: &Arc<dyn Clock>, deadline: MonotonicTime) {
    write_within(PATIENCE, clusters, clock, deadline).await;
}

/// Lets the events of leaders be written before the lease is given up, which is in the cluster of this name.
pub(super) async fn write_before_release(
    clusters: &[Cluster],
    lease: &ClusterName,
    clock: &Arc<dyn Clock>,
    deadline: MonotonicTime,
) {
    let (here, elsewhere): (Vec<_>, Vec<_>) = clusters
        .iter()
        .cloned()
        .partition(|cluster| cluster.name() == lease);
    futures::join!(
        write_within(PATIENCE, &here, clock, deadline),
        write_within(PATIENCE_ELSEWHERE, &elsewhere, clock, deadline),
    );
}

async fn write_within(
    patience: Duration,
    clusters: &[Cluster],
    clock: &Arc<dyn Clock>,
    deadline: MonotonicTime,
) {
    let now = clock.now();
    let time = patience.min(deadline.saturating_since(now) / 2);
    tokio::select! {
        biased;
        _ = join_all(clusters.iter().map(Cluster::flush_events)) => {}
        () = clock.sleep_until(now + time) => {
            let clusters: Vec<&str> = clusters.iter().map(|cluster| cluster.name().as_str()).collect();
            tracing::warn!(?clusters, limit = ?time, "the last events were not written in time");
        }
    }
}
