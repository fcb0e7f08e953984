// SPDX-License-Identifier: Apache-2.0
//! Pending handler calls of objects.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use steersman_core::MonotonicTime;

use crate::{Request, controller::Memory};

/// Pending calls of each object for which not all handlers of a controller are done.
#[derive(Debug, Default)]
pub(super) struct AllPending(Mutex<HashMap<Request, Pending>>);

/// Pending calls of one object.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// All handlers are due, except the ones called since.
    everyone: bool,
    /// By the number of the handler.
    handlers: BTreeMap<u64, Due>,
    /// Names of the handlers that failed in this reconcile.
    failed: Vec<String>,
}

/// Time at which a handler is due, and its failures so far.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: MonotonicTime,
    failures: u32,
}

/// Conclusion of a handler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Conclusion {
    /// Done until something changes.
    Content,
    /// Failed with a terminal error.
    GivenUp,
    /// Due again at this time.
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
    /// Returns the pending calls of an object. If the reconcile does not reach [end](Self::end), all handlers are called
    /// again.
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

    /// Stores the pending calls, and returns the time of the next one.
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
    /// All handlers are due.
    pub(super) fn everything() -> Self {
        Self {
            everyone: true,
            ..Self::default()
        }
    }

    /// After a change: all handlers are due, and their failures are kept.
    pub(super) fn woken(self) -> Self {
        Self {
            everyone: true,
            ..self
        }
    }

    /// Returns the failures so far if the handler is due.
    pub(super) fn is_due(&self, number: u64, now: MonotonicTime) -> Option<u32> {
        let due = self.handlers.get(&number);
        let is_due = self.everyone || due.is_some_and(|due| due.at <= now);
        is_due.then(|| due.map_or(0, |due| due.failures))
    }

    /// Records the conclusion of a handler.
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

    /// Clears the due handlers, which were all called, and drops removed handlers.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.everyone = false;
        self.handlers.retain(|number, _| is_there(*number));
    }

    /// Returns the names of the handlers that failed in this reconcile.
    pub(super) fn take_failed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failed)
    }

    /// Returns the time of the next call, if one is pending.
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
