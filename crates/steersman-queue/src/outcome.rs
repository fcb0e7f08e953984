// SPDX-License-Identifier: Apache-2.0
//! How the work on a key ended.

use std::fmt;
use std::time::Duration;

/// Longer error texts are cut, because there may be one for each key.
const ERROR_BYTES_MAX: usize = 1024;

/// How the work on a key ended, and what is to become of it.
///
/// | outcome | the key | its back-off |
/// |---|---|---|
/// | [`done`](Self::done) | leaves the queue | is reset |
/// | [`retry`](Self::retry) | waits for its back-off | goes one step up |
/// | [`retry_after`](Self::retry_after) | waits that long | goes one step up |
/// | [`requeue`](Self::requeue) | waits for its back-off | goes one step up |
/// | [`requeue_after`](Self::requeue_after) | waits that long | is reset |
/// | [`fail`](Self::fail) | leaves the queue | stays as it is |
/// | [`postpone`](Self::postpone) | waits that long | stays as it is |
///
/// If the key was added again while in flight it is handed out again in any case, and at once if it was added
/// without delay.
///
/// ```
/// use std::time::Duration;
/// use steersman_queue::Outcome;
///
/// let soon = Outcome::requeue_after(Duration::from_secs(30)).priority(-100);
/// # let _ = soon;
/// ```
#[derive(Debug)]
#[must_use = "an outcome says something only to `Item::finish`"]
pub struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) priority: Option<i32>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Done,
    /// Without an error the key only asked to be done again.
    Retry(Option<Box<str>>),
    RetryAfter(Box<str>, Duration),
    RequeueAfter(Duration),
    Fail(Box<str>),
    Postpone(Duration),
    Dropped,
}

impl Outcome {
    /// Nothing is left to do.
    pub fn done() -> Self {
        Self::of(Kind::Done)
    }

    /// It failed and is to be tried again after its back-off. The text is kept for whoever looks, at most 1 KiB of
    /// it.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::of(Kind::Retry(Some(text(&error))))
    }

    /// It failed and is to be tried again after that time, whatever its back-off says.
    pub fn retry_after(error: impl fmt::Display, delay: Duration) -> Self {
        Self::of(Kind::RetryAfter(text(&error), delay))
    }

    /// Nothing failed, but it is to be done again after its back-off.
    pub fn requeue() -> Self {
        Self::of(Kind::Retry(None))
    }

    /// It went well and is to be done again after that time.
    pub fn requeue_after(delay: Duration) -> Self {
        Self::of(Kind::RequeueAfter(delay))
    }

    /// It failed in a way that trying again does not help. It rests until somebody adds it.
    pub fn fail(error: impl fmt::Display) -> Self {
        Self::of(Kind::Fail(text(&error)))
    }

    /// It was not worked on, and is to be handed out again after that time.
    pub fn postpone(delay: Duration) -> Self {
        Self::of(Kind::Postpone(delay))
    }

    /// With which priority it is to be done again. Default: the one it was handed out with.
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

/// What followed from an [`Outcome`]; made for the log line that says when a key is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub(crate) failures: u32,
    pub(crate) delay: Option<Duration>,
    pub(crate) repeats_error: bool,
}

impl Finished {
    /// How often in succession the key has now failed or asked to be done again.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// After which delay its outcome puts it back; `None` if it does not.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// Whether it failed with the same error text as the last time, as far as the queue keeps the text.
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
