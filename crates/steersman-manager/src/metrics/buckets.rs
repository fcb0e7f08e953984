// SPDX-License-Identifier: Apache-2.0
//! The buckets of histograms that existing dashboards draw, in seconds.

/// Of `controller_runtime_reconcile_time_seconds`.
pub const RECONCILE_TIME: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

/// Of `workqueue_queue_duration_seconds` and `workqueue_work_duration_seconds`: from 10 ns, each ten times the last.
///
/// They are multiplied here as Go does it, so that they have the same errors in the last place, which show in `le`.
pub const WORKQUEUE: [f64; 12] = {
    let mut buckets = [10e-9; 12];
    let mut index = 1;
    while index < buckets.len() {
        buckets[index] = buckets[index - 1] * 10.0;
        index += 1;
    }
    buckets
};

/// Of `rest_client_request_duration_seconds`.
pub const REST_CLIENT_LATENCY: [f64; 12] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
