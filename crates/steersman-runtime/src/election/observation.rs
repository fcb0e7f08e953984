// SPDX-License-Identifier: Apache-2.0
//! A candidate's observation of the lease, and the time of its turn.

use std::time::Duration;

use kube::core::DynamicObject;
use steersman_core::MonotonicTime;

use super::record::Record;

/// Observed state of a lease, and since when, on the candidate's monotonic clock.
///
/// That clock stops while the machine is suspended, and does not follow the calendar. So it can only wait too long, never
/// too short.
#[derive(Debug, Default)]
pub(super) struct LeaseObservation {
    lease: Option<DynamicObject>,
    record: Record,
    changed: MonotonicTime,
    /// Time since which the lease has no holder.
    free: Option<MonotonicTime>,
}

/// Next step of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Try to take the lease.
    Take,
    /// Wait until this time, or until the lease changes.
    Wait(MonotonicTime),
}

/// Facts about a candidate.
pub(super) struct Candidate<'a> {
    pub(super) identity: &'a str,
    /// Acquire time of its last term. Another process with the same identity wrote another time.
    pub(super) acquired: Option<&'a str>,
    pub(super) is_warm: bool,
    pub(super) patience: Duration,
}

impl LeaseObservation {
    /// Records the current lease; `None` if it does not exist.
    pub(super) fn observe(&mut self, lease: Option<DynamicObject>, now: MonotonicTime) {
        // The holder of a deleted lease might not know of the deletion, so the last record counts until it expires.
        if let Some(record) = lease.as_ref().map(Record::of)
            && record != self.record
        {
            self.record = record;
            self.changed = now;
        }
        self.lease = lease;
    }

    pub(super) fn lease(&self) -> Option<&DynamicObject> {
        self.lease.as_ref()
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the holder, as long as the lease has not expired.
    pub(super) fn leader(&self, now: MonotonicTime) -> Option<&str> {
        let is_held = !self.record.holder.is_empty() && now < self.changed + self.record.duration();
        is_held.then_some(&*self.record.holder)
    }

    /// Returns true if this candidate wrote the record of the lease.
    pub(super) fn is_of(&self, candidate: &Candidate<'_>) -> bool {
        is_of(&self.record, candidate.identity, candidate.acquired)
    }

    /// Returns the next step of the candidate.
    pub(super) fn turn(&mut self, candidate: &Candidate<'_>, now: MonotonicTime) -> Turn {
        if self.is_of(candidate) {
            return Turn::Take;
        }
        if self.leader(now).is_some() {
            self.free = None;
            return Turn::Wait(self.changed + self.record.duration());
        }
        let patient_until = *self.free.get_or_insert(now) + candidate.patience;
        if candidate.is_warm || now >= patient_until {
            Turn::Take
        } else {
            Turn::Wait(patient_until)
        }
    }
}

/// Returns true if the record has this identity and this acquire time.
pub(super) fn is_of(record: &Record, identity: &str, acquired: Option<&str>) -> bool {
    record.holder == identity && acquired == Some(&*record.acquired)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LEASE: Duration = Duration::from_secs(15);
    const PATIENCE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::ORIGIN + Duration::from_secs(seconds)
    }

    fn lease(holder: &str, renewed: &str) -> Option<DynamicObject> {
        let spec = json!({
            "holderIdentity": holder, "leaseDurationSeconds": 15, "acquireTime": "then", "renewTime": renewed,
        });
        Some(serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap())
    }

    fn warm<'a>() -> Candidate<'a> {
        Candidate {
            identity: "me",
            acquired: None,
            is_warm: true,
            patience: PATIENCE,
        }
    }

    fn cold<'a>() -> Candidate<'a> {
        Candidate {
            is_warm: false,
            ..warm()
        }
    }

    #[test]
    fn guarantee_2_a_lease_counts_from_when_it_was_seen_to_change() {
        let mut observed = LeaseObservation::default();
        // Timestamps of the lease do not matter.
        observed.observe(lease("other", "1970-01-01T00:00:00.000000Z"), at(100));
        assert_eq!(observed.turn(&warm(), at(100)), Turn::Wait(at(115)));
        observed.observe(lease("other", "1970-01-01T00:00:00.000000Z"), at(110));
        assert_eq!(
            observed.turn(&warm(), at(114)),
            Turn::Wait(at(115)),
            "nothing has changed"
        );
        observed.observe(lease("other", "1970-01-01T00:00:02.000000Z"), at(114));
        assert_eq!(observed.turn(&warm(), at(115)), Turn::Wait(at(129)));
        assert_eq!(observed.turn(&warm(), at(129)), Turn::Take);
        assert_eq!(LEASE, observed.record().duration());
    }

    #[test]
    fn guarantee_3_a_lease_that_was_given_up_or_never_was_is_free_at_once() {
        let mut observed = LeaseObservation::default();
        assert_eq!(observed.turn(&warm(), at(1)), Turn::Take);
        observed.observe(lease("other", "1"), at(2));
        assert_eq!(observed.turn(&warm(), at(2)), Turn::Wait(at(17)));
        observed.observe(lease("", "2"), at(3));
        assert_eq!(observed.turn(&warm(), at(3)), Turn::Take);
    }

    #[test]
    fn guarantee_2_a_lease_that_was_deleted_is_held_until_it_would_have_run_out() {
        let mut observed = LeaseObservation::default();
        observed.observe(lease("other", "1"), at(2));
        observed.observe(None, at(3));
        assert_eq!(observed.turn(&warm(), at(3)), Turn::Wait(at(17)));
        assert_eq!(observed.turn(&warm(), at(17)), Turn::Take);
    }

    #[test]
    fn guarantee_8_a_cold_replica_waits_before_it_takes_the_lease() {
        let mut observed = LeaseObservation::default();
        assert_eq!(observed.turn(&cold(), at(10)), Turn::Wait(at(15)));
        assert_eq!(observed.turn(&warm(), at(11)), Turn::Take);
        // Another replica was faster, and lets the lease expire.
        observed.observe(lease("other", "1"), at(12));
        assert_eq!(observed.turn(&cold(), at(20)), Turn::Wait(at(27)));
        assert_eq!(observed.turn(&cold(), at(27)), Turn::Wait(at(32)));
        assert_eq!(observed.turn(&cold(), at(32)), Turn::Take);
    }

    #[test]
    fn a_lease_is_held_only_if_it_equals_the_last_write() {
        let mut observed = LeaseObservation::default();
        observed.observe(lease("me", "1"), at(1));
        assert_eq!(
            observed.turn(&warm(), at(1)),
            Turn::Wait(at(16)),
            "of another process"
        );
        let again = Candidate {
            acquired: Some("then"),
            ..cold()
        };
        assert_eq!(observed.turn(&again, at(1)), Turn::Take);
    }
}
