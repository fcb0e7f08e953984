// SPDX-License-Identifier: Apache-2.0
//! Shared by the driver and the replicas of the benchmark `failover`.

use std::time::Duration;

/// A lease that runs out soon, so that a run does not take long. `bench/peers/go/failover` has the same.
pub const DURATION: Duration = Duration::from_secs(3);

/// Renew deadline.
pub const RENEW: Duration = Duration::from_secs(2);

/// Retry period of leaders and candidates.
pub const RETRY: Duration = Duration::from_millis(400);
