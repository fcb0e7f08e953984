// SPDX-License-Identifier: Apache-2.0
//! What driver and replicas of the benchmark `failover` have in common.

use std::time::Duration;

/// A lease that runs out soon, so that a run does not take long. `bench/peers/go/failover` has the same.
pub const DURATION: Duration = Duration::from_secs(3);

/// How long a leader acts that cannot renew.
pub const RENEW: Duration = Duration::from_secs(2);

/// How often a leader renews, and how often a candidate that cannot watch asks.
pub const RETRY: Duration = Duration::from_millis(400);
