// SPDX-License-Identifier: Apache-2.0
//! Time-based compaction: the revisions that can no longer be listed.
//!
//! The real server compacts its database every five minutes to the revision of five minutes before. Lists at an older
//! revision, and pages of such lists, then expire. Watches have a separate history.

use std::time::{Duration, SystemTime};

/// Interval of the real server's compaction.
const INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The revisions that have expired.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// The time and the revision that were recorded for the next compaction.
    noted: Option<(SystemTime, u64)>,
    floor: u64,
}

impl Compaction {
    /// Runs the compaction that is due; `revision` is the newest.
    pub(crate) fn advance(&mut self, now: SystemTime, revision: u64) {
        let Some((at, noted)) = self.noted else {
            self.noted = Some((now, revision));
            return;
        };
        let passed = now.duration_since(at).unwrap_or_default();
        if passed < INTERVAL {
            return;
        }
        // No write happened since the last request, so every later compaction would have used the newest revision.
        self.floor = if passed < 2 * INTERVAL { noted } else { revision };
        self.noted = Some((now, revision));
    }

    /// Returns true if objects at a revision can no longer be listed.
    pub(crate) fn has_expired(&self, revision: u64) -> bool {
        revision < self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_expires_between_five_and_ten_minutes_after_the_next_one() {
        let mut compaction = Compaction::default();
        let at = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(minutes * 60);
        compaction.advance(at(0), 10);
        compaction.advance(at(4), 20);
        assert!(!compaction.has_expired(9));
        compaction.advance(at(5), 30);
        assert!(compaction.has_expired(9));
        assert!(!compaction.has_expired(10));
        compaction.advance(at(10), 40);
        assert!(compaction.has_expired(29));
        assert!(!compaction.has_expired(30));
        compaction.advance(at(60), 40);
        assert!(compaction.has_expired(39));
        assert!(!compaction.has_expired(40));
    }
}
