// SPDX-License-Identifier: Apache-2.0
//! What is left to do about objects.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use steersman_core::MonotonicTime;

use crate::{Request, controller::Memory};

/// What is left to do about each of the objects with which not all handlers of a controller are content.
#[derive(Debug, Default)]
pub(super) struct AllPending(Mutex<HashMap<Request, Pending>>);

/// Who is to be called for an object, and when.
#[derive(Clone, Debug, Default)]
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
    at: MonotonicTime,
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
        at: MonotonicTime,
        failures: u32,
        is_failure: bool,
    },
}

impl Conclusion {
    pub(super) fn again(at: MonotonicTime, failures: u32) -> Self {
        Self::Again {
            at,
            failures,
            is_failure: false,
        }
    }

    pub(super) fn failed(at: MonotonicTime, failures: u32) -> Self {
        Self::Again {
            at,
            failures,
            is_failure: true,
        }
    }
}

impl AllPending {
    /// What is left to do about an object. Whatever happens to the reconcile, all are called again after it, unless it
    /// comes to its [end](Self::end).
    pub(super) fn begin(&self, request: &Request, is_news: bool) -> Pending {
        let mut all = self.lock();
        let pending = match all.remove(request) {
            Some(pending) if !is_news => pending,
            Some(pending) => pending.woken(),
            None => Pending::everything(),
        };
        all.insert(request.clone(), pending.clone().woken());
        pending
    }

    /// Remembers what is left to do, and says when that is.
    pub(super) fn end(&self, request: Request, pending: Pending) -> Option<MonotonicTime> {
        let (next, mut all) = (pending.next(), self.lock());
        match next {
            Some(_) => all.insert(request, pending),
            None => all.remove(&request),
        };
        next
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Request, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory<Request> for AllPending {
    fn forget(&self, request: &Request) {
        self.lock().remove(request);
    }

    fn forget_all(&self, is_meant: &dyn Fn(&Request) -> bool) {
        self.lock().retain(|request, _| !is_meant(request));
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
    pub(super) fn is_due(&self, number: u64, now: MonotonicTime) -> Option<u32> {
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
    pub(super) fn next(&self) -> Option<MonotonicTime> {
        self.handlers.values().map(|due| due.at).min()
    }
}

#[cfg(test)]
mod tests {
    use steersman_core::ObjectKey;

    use super::*;

    const NOW: MonotonicTime = MonotonicTime::from_nanos(10);
    const LATER: MonotonicTime = MonotonicTime::from_nanos(20);

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

    fn request(name: &str) -> Request {
        Request::new("default".into(), ObjectKey::new("ns", name))
    }

    #[test]
    fn guarantee_7_failures_are_still_known_after_a_reconcile_without_an_end() {
        let (all, a) = (AllPending::default(), request("a"));
        let mut pending = all.begin(&a, true);
        pending.conclude(1, "one", Conclusion::failed(NOW, 3));
        pending.retain(|_| true);
        assert_eq!(all.end(a.clone(), pending), Some(NOW));
        drop(all.begin(&a, false));
        let pending = all.begin(&a, false);
        assert_eq!(pending.is_due(1, NOW), Some(3));
        assert_eq!(
            pending.is_due(2, NOW),
            Some(0),
            "nobody knows whether it was called"
        );
    }

    #[test]
    fn guarantee_6_nothing_is_left_of_what_is_forgotten() {
        let all = AllPending::default();
        for name in ["a", "b", "c"] {
            drop(all.begin(&request(name), true));
        }
        all.forget(&request("a"));
        all.forget_all(&|request| request.name() == "b");
        assert_eq!(all.lock().keys().collect::<Vec<_>>(), [&request("c")]);
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
