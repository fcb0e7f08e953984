// SPDX-License-Identifier: Apache-2.0
//! Threads, file descriptors and memory of this process.

use std::{fs, time::Duration};

use super::CLOSING;

/// Memory may grow by this much, since an allocator keeps what it has.
const MEMORY_SLACK_KB: u64 = 40_000;

/// So many more threads may be there for a moment: those of the runtime.
const THREADS_SLACK: usize = 4;

/// The proxies and the users of the test keep so many idle connections to the server.
const DESCRIPTORS_SLACK: usize = 24;

/// Resources that this process uses.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    threads: usize,
    descriptors: usize,
    memory_kb: u64,
}

impl Footprint {
    pub fn now() -> Self {
        let count = |dir: &str| fs::read_dir(dir).unwrap().count();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.and_then(|text| text.split_whitespace().next());
        Self {
            threads: count("/proc/self/task"),
            descriptors: count("/proc/self/fd"),
            memory_kb: memory.unwrap().parse().unwrap(),
        }
    }

    /// No more is in use now than in this footprint, once what is closing has closed.
    pub async fn is_kept(&self, seed: u64) {
        let fits = |now: Self| {
            now.threads <= self.threads + THREADS_SLACK
                && now.descriptors <= self.descriptors + DESCRIPTORS_SLACK
                && now.memory_kb <= self.memory_kb + MEMORY_SLACK_KB
        };
        let waiting = async {
            while !fits(Self::now()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let kept = tokio::time::timeout(CLOSING, waiting).await;
        assert!(
            kept.is_ok(),
            "seed {seed}: {:?} is in use, after the first seed it was {self:?}",
            Self::now()
        );
    }
}
