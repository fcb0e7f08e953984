// SPDX-License-Identifier: Apache-2.0
//! A soak: two warm replicas of an operator, each behind its own fault proxy, while users and faults act at random.
//!
//! Each seed plays some seconds of user actions and faults, then heals everything and checks:
//! 1. The state converges: every object has its finalizer and its child, and no child outlives its parent.
//! 2. No replica wrote without the lease, by the revisions of the server and by the requests at the proxies. Users delete the lease
//!    now and then; its former holder is allowed to write until its fence closes.
//! 3. Every deleted object was cleaned up, and its finalizer was released exactly once, by the history of the server.
//! 4. No cached read said that an object is absent which the replica had seen and which was never deleted.
//! 5. In steady state nothing is written.
//! 6. Replicas that ended, also killed ones, leave no connection open. Threads, file descriptors and memory do not grow
//!    from seed to seed.
//!
//! One short seed runs with all tests. `cargo xtask soak --seeds N --seed S` runs more of them, one after another. A seed fixes what
//! is done in which order; when it happens depends on the machine.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/elected/mod.rs"]
mod elected;
#[path = "manager/managed/mod.rs"]
mod managed;
#[path = "manager/soaked/mod.rs"]
mod soaked;

use std::time::Duration;

use soaked::{Chance, Footprint, Stage};
use steersman_testing::Fixture;

fn number(variable: &str) -> Option<u64> {
    let asked = std::env::var(variable).ok()?;
    Some(asked.parse().unwrap())
}

// R68, R77, R123, D29
#[steersman_testing::test]
async fn two_replicas_converge_after_any_faults(fixture: Fixture) {
    let seeds = number("STEERSMAN_SOAK_SEEDS");
    let first = number("STEERSMAN_SOAK_SEED").unwrap_or(1);
    let faulty = Duration::from_secs(number("STEERSMAN_SOAK_SECONDS").unwrap_or(6));
    let mut stage = Stage::new(fixture).await;
    let mut footprint = None;
    for seed in first..first + seeds.unwrap_or(1) {
        stage.play(seed, &mut Chance::new(seed), faulty).await;
        // Beside other tests in this process, these figures are not about the soak alone.
        if seeds.is_some() {
            let first = footprint.get_or_insert_with(Footprint::now);
            first.is_kept(seed).await;
        }
    }
}
