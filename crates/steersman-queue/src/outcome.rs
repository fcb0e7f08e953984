// SPDX-License-Identifier: Apache-2.0
//! Outcome of the work on a key.

use std::fmt;
use std::time::Duration;

/// Longer error texts are cut, because each key can have one.
const ERROR_BYTES_MAX: usize = 1024;

/// Outcome of the work on a key, which determines when it is handed out again.
///
/// | outcome | the key | its back-off |
/// |---|---|---|
/// | [`done`](Self::done) | leaves the queue | is reset |
/// | [`retry`](Self::retry) | waits for its back-off | increases by one step |
/// | [`retry_after`](Self::retry_after) | waits that long | increases by one step |
/// | [`requeue`](Self::requeue) | waits for its back-off | increases by one step |
/// | [`requeue_after`](Self::requeue_after) | waits that long | is reset |
/// | [`fail`](Self::fail) | leaves the queue | is unchanged |
/// | [`postpone`](Self::postpone) | waits that long | is unchanged |
///
/// If the key was added again while in flight, it is handed out again in any case, and at once if it was added without
/// delay.
///
/// ```
/// use std::time::Duration;
/// use steersman_queue::Outcome;
///
/// let soon = Outcome::requeue_after(Duration::from_secs(30)).priority(-100);
/// # let _ = soon;
/// ```
#[derive(Debug)]
#[must_use = "an outcome has an effect only in `Item::finish`"]
pub struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) priority: Option<i32>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Done,
    /// Without an error, the key only requested a requeue.
    Retry(Option<Box<str>>),
    RetryAfter(Box<str>, Duration),
    RequeueAfter(Duration),
    Fail(Box<str>),
    Postpone(Duration),
    Dropped,
}

impl Outcome {
    /// The work is complete.
    pub fn done() -> Self {
        Self::of(Kind::Done)
    }

    /// The work failed; retry it after its back-off. The status keeps at most 1 KiB of the error text.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::of(Kind::Retry(Some(text(&error))))
    }

    /// The work failed; retry it after `delay`, independent of its back-off.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        Self::of(Kind::RetryAfter(text(&error), delay))
    }

    /// The work did not fail; requeue it after its back-off.
    pub fn requeue() -> Self {
        Self::of(Kind::Retry(None))
    }

    /// The work succeeded; requeue it after `delay`.
    pub fn requeue_after(delay: Duration) -> Self {
        Self::of(Kind::RequeueAfter(delay))
    }

    /// The work failed permanently. The key is not retried until it is added again.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self::of(Kind::Fail(text(&error)))
    }

    /// The key was not worked on; hand it out again after `delay`.
    pub fn postpone(delay: Duration) -> Self {
        Self::of(Kind::Postpone(delay))
    }

    /// Sets the priority of the requeue. Default: the priority with which it was handed out.
    pub fn priority(self, priority: i32) -> Self {
        Self {
            priority: Some(priority),
            ..self
        }
    }

    pub(crate) fn of(kind: Kind) -> Self {
        Self { kind, priority: None }
    }
}

/// Effect of an [`Outcome`], for the log line that reports the next retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub(crate) failures: u32,
    pub(crate) delay: Option<Duration>,
    pub(crate) repeats_error: bool,
}

impl Finished {
    /// Returns the number of consecutive failures and requeues with back-off, this one included.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the delay of the requeue, or `None` if the outcome does not requeue the key.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Reports whether it failed with the same error text as the last time, as far as the queue keeps the text.
    #[must_use]
    pub fn repeats_error(&self) -> bool {
        self.repeats_error
    }
}

fn text(error: &dyn fmt::Display) -> Box<str> {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text.into_boxed_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_cut_between_characters() {
        assert_eq!(text(&"ü".repeat(2000)).len(), 1024);
        assert_eq!(text(&format!("x{}", "ü".repeat(2000))).len(), 1023);
    }
}
