// SPDX-License-Identifier: Apache-2.0
//! Writes the events that were recorded shortly before the end, such as a stop event.
//!
//! They wait in a queue, and would be lost with the process, or fenced once the lease is released.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, MonotonicTime};

/// Limit of the wait for events: later steps, such as the release of the lease, matter more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Limit for clusters other than that of the lease, before the lease is released. A cluster that does not answer must not
/// delay the next leader.
const PATIENCE_ELSEWHERE: Duration = Duration::from_secs(1);

/// Waits until the events of clusters are written, for at most half of the remaining time.
pub(super) async fn write(clusters: &[Cluster], clock: &Arc<dyn Clock>, deadline: MonotonicTime) {
    write_within(PATIENCE, clusters, clock, deadline).await;
}

/// Waits until the events of leader work are written, before the lease is released. The lease is in the cluster of this
/// name.
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
    let written = join_all(clusters.iter().map(Cluster::flush_events));
    if clock.timeout_at(now + time, written).await.is_none() {
        let clusters: Vec<&str> = clusters.iter().map(|cluster| cluster.name().as_str()).collect();
        tracing::warn!(?clusters, limit = ?time, "failed to write the last events in time");
    }
}
