// SPDX-License-Identifier: Apache-2.0
//! Options of a reflector.

use std::time::Duration;

use crate::jitter::scaled;

/// Options for listing and watching. The default suits every server.
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
    /// Sets the page size of lists. Default: 500; zero lists without pages.
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = (size > 0).then_some(size);
        self
    }

    /// Enables streamed lists, if the server supports them. No effect with [`poll`](Self::poll). Default: true.
    pub fn streaming(mut self, streaming: bool) -> Self {
        self.streaming = streaming;
        self
    }

    /// Allows the server to compress responses. This saves bandwidth and costs CPU on both sides. Default: false.
    pub fn compressed(mut self, compressed: bool) -> Self {
        self.compressed = compressed;
        self
    }

    /// Lists at this interval instead of watching, for resources without `watch`. No watch is opened, so permission to `list` is
    /// enough. Default: off; zero is off.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// Relists at about this interval in addition to the watch, to detect events lost by servers or proxies. A difference is
    /// reported as if it had just happened. Each relist costs a whole list, and changes wait until it is complete. Default: off,
    /// because a watch either delivers everything or breaks; zero is off.
    pub fn relist(mut self, interval: Duration) -> Self {
        self.relist = Some(interval).filter(|interval| !interval.is_zero());
        self
    }

    /// Sets the watch timeout: the server closes a watch after one to two times this duration, so that watches move between
    /// servers. Default: 5 min. Minimum: 1 s, since zero leaves the timeout to the server. Maximum: one day.
    pub fn watch_for(mut self, time: Duration) -> Self {
        self.watch_timeout = time.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// Sets how long a streamed list can go without a new object before the server counts as not streaming. The whole list can
    /// take thirty times as long. After this timeout, that list is paged. Default: 10 s.
    pub fn initial_events_within(mut self, limit: Duration) -> Self {
        self.initial_events_limit = limit;
        self
    }

    /// Sets how long a response or a list can be silent before the server counts as unreachable. Default: 75 s, because servers
    /// themselves time out after 60 s, with an error response.
    pub fn answer_within(mut self, limit: Duration) -> Self {
        self.answer_limit = limit;
        self
    }

    pub(super) fn page_limit(&self) -> Option<u32> {
        self.page_size
    }

    /// Returns true if lists are streamed. A streamed list is a watch, which polling does not use.
    pub(super) fn is_streaming(&self) -> bool {
        self.streaming && self.poll.is_none()
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.compressed
    }

    pub(super) fn poll_interval(&self) -> Option<Duration> {
        self.poll
    }

    /// Adds a tenth up or down, so that not all lists run at once.
    pub(super) fn relist_after(&self, chance: f64) -> Option<Duration> {
        self.relist.map(|interval| scaled(interval, 0.9 + 0.2 * chance))
    }

    /// Adds jitter, so that watches opened together do not end together.
    pub(super) fn watch_timeout(&self, chance: f64) -> Duration {
        scaled(self.watch_timeout, 1.0 + chance)
    }

    /// Returns the maximum duration of a watch, plus some time for the server to close it.
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
    fn the_watch_timeout_is_between_a_second_and_a_day() {
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
