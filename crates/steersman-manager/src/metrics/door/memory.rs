// SPDX-License-Identifier: Apache-2.0
//! Answers that are remembered for a while.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use steersman_core::{Clock, Moment};

/// So many are remembered. Scrapers are few; more than this is somebody who tries tokens.
const LIMIT: usize = 4096;

/// Stands for what was asked about.
pub(super) type Digest = [u8; SHA256_OUTPUT_LEN];

/// The digest of these parts, in which no part runs into the next.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Values by digest, each until its time is over.
pub(super) struct Memory<V> {
    clock: Arc<dyn Clock>,
    known: Mutex<HashMap<Digest, (Moment, V)>>,
}

impl<V: Clone> Memory<V> {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            known: Mutex::default(),
        }
    }

    pub(super) fn recall(&self, key: &Digest) -> Option<V> {
        let known = self.lock();
        let (until, value) = known.get(key)?;
        (self.clock.now() < *until).then(|| value.clone())
    }

    pub(super) fn remember(&self, key: Digest, value: V, age: Duration) {
        let now = self.clock.now();
        let mut known = self.lock();
        if known.len() >= LIMIT {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() >= LIMIT {
            // Who asks again is asked about again, which is all that is lost.
            known.clear();
        }
        known.insert(key, (now + age, value));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, (Moment, V)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> fmt::Debug for Memory<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use steersman_core::TestClock;

    use super::*;

    #[test]
    fn an_answer_is_forgotten_when_its_time_is_over() {
        let clock = TestClock::new();
        let memory = Memory::new(Arc::new(clock.clone()));
        let key = digest([b"a".as_slice()]);
        memory.remember(key, 1, Duration::from_secs(60));
        clock.advance(Duration::from_secs(59));
        assert_eq!(memory.recall(&key), Some(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!(memory.recall(&key), None);
    }

    #[test]
    fn many_who_ask_take_no_more_than_the_limit() {
        let memory = Memory::new(Arc::new(TestClock::new()));
        for number in 0..3 * LIMIT {
            memory.remember(digest([number.to_le_bytes().as_slice()]), (), Duration::MAX);
        }
        assert!(memory.lock().len() <= LIMIT);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
    }
}
