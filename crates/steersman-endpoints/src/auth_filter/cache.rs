// SPDX-License-Identifier: Apache-2.0
//! A cache whose entries expire.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use steersman_core::{Clock, MonotonicTime, Mutex};

/// Maximum number of entries. An operator has few scrapers; more entries mean that a client tries tokens.
const ENTRIES_MAX: usize = 4096;

/// The key of an entry.
pub(super) type Digest = [u8; SHA256_OUTPUT_LEN];

/// Returns the digest of these parts. Lengths are part of it, so `["ab", "c"]` differs from `["a", "bc"]`.
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

/// Values by digest, each with a time to live.
pub(super) struct Cache<V> {
    clock: Arc<dyn Clock>,
    entries: Mutex<HashMap<Digest, Entry<V>>>,
}

struct Entry<V> {
    expires: MonotonicTime,
    value: V,
}

impl<V: Clone> Cache<V> {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            entries: Mutex::default(),
        }
    }

    pub(super) fn get(&self, key: &Digest) -> Option<V> {
        let entries = self.entries.lock();
        let entry = entries.get(key)?;
        (self.clock.now() < entry.expires).then(|| entry.value.clone())
    }

    pub(super) fn insert(&self, key: Digest, value: V, ttl: Duration) {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, entry| now < entry.expires);
        }
        if entries.len() >= ENTRIES_MAX {
            // An evicted entry costs one more review, nothing else.
            entries.clear();
        }
        let expires = now + ttl;
        entries.insert(key, Entry { expires, value });
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use steersman_core::TestClock;

    use super::*;

    #[test]
    fn an_entry_expires() {
        let clock = TestClock::new();
        let cache = Cache::new(Arc::new(clock.clone()));
        let key = digest([b"a".as_slice()]);
        cache.insert(key, 1, Duration::from_secs(60));
        clock.advance(Duration::from_secs(59));
        assert_eq!(cache.get(&key), Some(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!(cache.get(&key), None);
    }

    #[test]
    fn many_keys_do_not_exceed_the_limit() {
        let cache = Cache::new(Arc::new(TestClock::new()));
        for number in 0..3 * ENTRIES_MAX {
            cache.insert(digest([number.to_le_bytes().as_slice()]), (), Duration::MAX);
        }
        assert!(cache.entries.lock().len() <= ENTRIES_MAX);
    }

    #[test]
    fn a_digest_depends_on_the_boundaries_of_its_parts() {
        assert_ne!(digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
    }
}
