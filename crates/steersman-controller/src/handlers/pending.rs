// SPDX-License-Identifier: Apache-2.0
//! What is left to do about one object.

use std::collections::BTreeMap;

use steersman_core::Moment;

/// Who is to be called for an object, and when.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// All are to be called, except those that were since.
    everyone: bool,
    /// By the number of the handler.
    handlers: BTreeMap<u64, Due>,
    /// Those that failed just now.
    failed: Vec<String>,
}

/// When a handler is to be called, and how often it has failed before.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: Moment,
    failures: u32,
}

/// How a handler ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Conclusion {
    /// It need not be called before something changes.
    Content,
    /// It failed, and calling it again does not help.
    GivenUp,
    /// It is to be called again.
    Again {
        at: Moment,
        failures: u32,
        is_failure: bool,
    },
}

impl Conclusion {
    pub(super) fn again(at: Moment, failures: u32) -> Self {
        Self::Again {
            at,
            failures,
            is_failure: false,
        }
    }

    pub(super) fn failed(at: Moment, failures: u32) -> Self {
        Self::Again {
            at,
            failures,
            is_failure: true,
        }
    }
}

impl Pending {
    /// All are to be called.
    pub(super) fn everything() -> Self {
        Self {
            everyone: true,
            ..Self::default()
        }
    }

    /// Something changed: all are to be called, and what is known of their failures counts on.
    pub(super) fn woken(self) -> Self {
        Self {
            everyone: true,
            ..self
        }
    }

    /// Whether it is the turn of a handler, and how often it failed before.
    pub(super) fn is_due(&self, number: u64, now: Moment) -> Option<u32> {
        let due = self.handlers.get(&number);
        let is_due = self.everyone || due.is_some_and(|due| due.at <= now);
        is_due.then(|| due.map_or(0, |due| due.failures))
    }

    /// A handler was called.
    pub(super) fn conclude(&mut self, number: u64, name: &str, conclusion: Conclusion) {
        match conclusion {
            Conclusion::Content => _ = self.handlers.remove(&number),
            Conclusion::GivenUp => {
                self.handlers.remove(&number);
                self.failed.push(name.to_owned());
            }
            Conclusion::Again {
                at,
                failures,
                is_failure,
            } => {
                self.handlers.insert(number, Due { at, failures });
                if is_failure {
                    self.failed.push(name.to_owned());
                }
            }
        }
    }

    /// All that were due have been called. Forgets those that are not there any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.everyone = false;
        self.handlers.retain(|number, _| is_there(*number));
    }

    /// The names of those that failed just now.
    pub(super) fn take_failed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failed)
    }

    /// When the next one is to be called, if one is.
    pub(super) fn next(&self) -> Option<Moment> {
        self.handlers.values().map(|due| due.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(10);
    const LATER: Moment = Moment::from_nanos(20);

    #[test]
    fn guarantee_6_nothing_is_left_when_all_are_content() {
        let mut pending = Pending::everything();
        assert_eq!(pending.is_due(1, NOW), Some(0));
        pending.conclude(1, "one", Conclusion::Content);
        pending.conclude(2, "two", Conclusion::GivenUp);
        pending.conclude(3, "three", Conclusion::failed(LATER, 1));
        pending.retain(|number| number != 3);
        assert_eq!(pending.take_failed(), ["two", "three"]);
        assert_eq!(pending.next(), None);
    }

    #[test]
    fn guarantee_3_only_those_are_due_whose_time_has_come_unless_something_changed() {
        let mut pending = Pending::everything();
        pending.conclude(1, "one", Conclusion::again(NOW, 0));
        pending.conclude(2, "two", Conclusion::failed(LATER, 3));
        pending.retain(|_| true);
        assert_eq!(pending.next(), Some(NOW));
        assert_eq!(pending.is_due(1, NOW), Some(0));
        assert_eq!(pending.is_due(2, NOW), None);
        assert_eq!(pending.is_due(3, NOW), None, "it is content");
        let pending = pending.woken();
        assert_eq!(pending.is_due(2, NOW), Some(3));
        assert_eq!(pending.is_due(3, NOW), Some(0));
    }
}
