// SPDX-License-Identifier: Apache-2.0
//! How a reflector lists and watches.

use std::time::Duration;

use crate::jitter::scaled;

/// How a reflector lists and watches. The default suits every server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ReflectorOptions {
    page_size: Option<u32>,
    streaming: bool,
    compressed: bool,
    poll: Option<Duration>,
    relist: Option<Duration>,
    watch_timeout: Duration,
    initial_events_limit: Duration,
    answer_limit: Duration,
}

impl Default for ReflectorOptions {
    fn default() -> Self {
        Self {
            page_size: Some(500),
            streaming: true,
            compressed: false,
            poll: None,
            relist: None,
            watch_timeout: Duration::from_secs(300),
            initial_events_limit: Duration::from_secs(10),
            answer_limit: Duration::from_secs(75),
        }
    }
}

impl ReflectorOptions {
    /// Lists come in pages of this size; 0 asks for all in one piece. Default: 500.
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = (size > 0).then_some(size);
        self
    }

    /// Whether lists are streamed where the server has that. One who [polls](Self::poll) has none to stream. Default: yes.
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.streaming = streaming;
        self
    }

    /// Whether the server may compress. It saves bandwidth and costs CPU on both sides. Default: no.
    pub fn compressed(mut self, compressed: bool) -> Self {
        self.compressed = compressed;
        self
    }

    /// Lists at this interval instead of watching, for resources that cannot be watched. No watch is ever asked for then,
    /// so the right to list is enough. Zero is off. Default: off.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// Lists anew at about this interval besides, for those who want to be sure even of servers and proxies that lose
    /// events: what differs is told as if it had just happened. Each costs a whole list, and changes wait until it is
    /// there. Zero is off. Default: off, because a watch either tells everything or breaks.
    pub fn relist(mut self, interval: Duration) -> Self {
        self.relist = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// After this time, and up to as much again, the server is asked to end a watch in good order, so that watches move
    /// between servers; a second at least, since zero leaves it to the server, and a day at most. Default: 5 min.
    pub fn watch_for(mut self, time: Duration) -> Self {
        self.watch_timeout = time.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// So long may a streamed list show no further object before it is taken for one that the server does not do, and
    /// thirty times as long may it take in all. That list comes in pages then. Default: 10 s.
    pub fn initial_events_within(mut self, limit: Duration) -> Self {
        self.initial_events_limit = limit;
        self
    }

    /// So long may an answer or a list be silent before the server is taken for gone. Default: 75 s, because servers give
    /// up after 60 s by themselves, and say so.
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    pub(super) fn page_limit(&self) -> Option<u32> {
        self.page_size
    }

    /// A streamed list is a watch, which one who polls does not ask for.
    pub(super) fn is_streaming(&self) -> bool {
        self.streaming && self.poll.is_none()
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed
    }

    pub(super) fn poll_interval(&self) -> Option<Duration> {
        self.poll
    }

    /// A tenth up or down, so that not all lists come at once.
    pub(super) fn relist_after(&self, chance: f64) -> Option<Duration> {
        self.relist.map(|interval| scaled(interval, 0.9 + 0.2 * chance))
    }

    /// Spread by chance, so that watches opened together do not end together.
    pub(super) fn watch_timeout(&self, chance: f64) -> Duration {
        scaled(self.watch_timeout, 1.0 + chance)
    }

    /// A watch may be silent for as long as it may take, and a little longer for the server to end it.
    pub(super) fn idle_limit(&self) -> Duration {
        let longest = self.watch_timeout.saturating_mul(2);
        longest.saturating_add(Duration::from_secs(15))
    }

    pub(super) fn initial_events_limit(&self) -> Duration {
        self.initial_events_limit
    }

    pub(super) fn answer_limit(&self) -> Duration {
        self.answer_limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_lasts_a_second_at_least_and_a_day_at_most() {
        for (asked, seconds) in [
            (Duration::ZERO, 1),
            (Duration::from_secs(7), 7),
            (Duration::MAX, 86_400),
        ] {
            let options = ReflectorOptions::default().watch_for(asked);
            assert_eq!(options.watch_timeout(0.0), Duration::from_secs(seconds));
            assert!(options.idle_limit() > options.watch_timeout(1.0));
        }
    }
}
