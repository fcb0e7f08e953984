// SPDX-License-Identifier: Apache-2.0
//! The summary of conditions, and the conditions of kstatus that follow from it.

use super::{ConditionSet, ConditionStatus, Conditions, ObservedAt};

const RECONCILING: &str = "Reconciling";
const STALLED: &str = "Stalled";

/// Conditions that [`ConditionSet::KSTATUS`] adds.
pub(super) const KSTATUS: [&str; 2] = [RECONCILING, STALLED];

/// Status, reason and message of a summary.
struct Summary {
    status: ConditionStatus,
    reason: String,
    message: String,
}

impl<S: ConditionSet> Conditions<S> {
    /// Completes the conditions after a reconcile: computes the summary, and resets conditions that were not set for this
    /// generation.
    pub fn summarise(&mut self, at: ObservedAt) {
        self.initialise(at);
        self.expire(at);
        if !S::SUMMARY.is_empty() {
            let stalled = self.stalled.take().filter(|_| S::KSTATUS);
            let mut summary = self.summary_of_declared();
            if let Some(stalled) = stalled
                .clone()
                .filter(|_| summary.status == ConditionStatus::True)
            {
                summary.status = ConditionStatus::False;
                (summary.reason, summary.message) = stalled;
            }
            self.set_named(S::SUMMARY, summary.status, &summary.reason, &summary.message, at);
            if S::KSTATUS {
                self.set_kstatus(&summary, stalled.as_ref(), at);
            }
        }
        self.sort();
    }

    /// Marks the work on this object as stalled: retries cannot succeed until a person changes something. It is valid for the
    /// next [`summarise`](Self::summarise), and has an effect only with [`ConditionSet::KSTATUS`].
    pub fn set_stalled(&mut self, reason: &str, message: &str) {
        self.stalled = Some((reason.to_owned(), message.to_owned()));
    }

    /// As [`set_stalled`](Self::set_stalled), unless user code did that.
    pub(crate) fn set_stalled_if_not(&mut self, reason: &str, message: &str) {
        if self.stalled.is_none() {
            self.set_stalled(reason, message);
        }
    }

    /// Resets conditions that were set for an earlier generation.
    fn expire(&mut self, at: ObservedAt) {
        let Some(generation) = at.generation() else { return };
        for condition in S::ALL {
            let observed = self.get(*condition).and_then(|found| found.observed_generation);
            // A stale read can be older than the last reconcile; that one has seen more.
            if observed.is_none_or(|observed| observed < generation) {
                let message = format!("not observed for generation {generation}");
                self.set_unknown(*condition, "NotObserved", &message, at);
            }
        }
    }

    fn summary_of_declared(&self) -> Summary {
        let mut summary = Summary {
            status: ConditionStatus::True,
            reason: "AllConditionsMet".to_owned(),
            message: String::new(),
        };
        for condition in S::ALL.iter().filter(|condition| !condition.informational()) {
            let Some(found) = self.get(*condition) else {
                continue;
            };
            let status = match (self.status(*condition), condition.negative()) {
                (ConditionStatus::True, true) => ConditionStatus::False,
                (ConditionStatus::False, true) => ConditionStatus::True,
                (status, _) => status,
            };
            if summary.status < status {
                let separator = if found.message.is_empty() { "" } else { ": " };
                summary = Summary {
                    status,
                    reason: found.reason.clone(),
                    message: format!("{}{separator}{}", condition.name(), found.message),
                };
            }
        }
        summary
    }

    fn set_kstatus(&mut self, summary: &Summary, stalled: Option<&(String, String)>, at: ObservedAt) {
        let (present, reason, message) = match (stalled, summary.status) {
            (Some((reason, message)), _) => (Some(STALLED), &**reason, &**message),
            (None, ConditionStatus::True) => (None, "", ""),
            (None, _) => (Some(RECONCILING), &*summary.reason, &*summary.message),
        };
        self.list
            .retain(|condition| !KSTATUS.contains(&&*condition.type_) || Some(&*condition.type_) == present);
        if let Some(present) = present {
            self.set_named(present, ConditionStatus::True, reason, message, at);
        }
    }
}
