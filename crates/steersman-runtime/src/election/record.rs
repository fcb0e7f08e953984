// SPDX-License-Identifier: Apache-2.0
//! Record of a lease, in the format of client-go.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

/// The fields of a lease that an election uses. Times are text: they are only compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty if the lease has no holder.
    pub(super) holder: String,
    pub(super) seconds: i64,
    pub(super) acquired: String,
    pub(super) renewed: String,
    pub(super) transitions: i64,
}

impl Record {
    /// Reads the record. The server validates types, so a field of another type counts as missing.
    pub(super) fn of(lease: &DynamicObject) -> Self {
        let spec = &lease.data["spec"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        let number = |field: &str| spec[field].as_i64().unwrap_or_default();
        Self {
            holder: text("holderIdentity"),
            seconds: number("leaseDurationSeconds"),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: number("leaseTransitions"),
        }
    }

    /// Writes the record into a lease, and keeps its other fields.
    pub(super) fn write(&self, lease: &mut DynamicObject) {
        if !lease.data.is_object() {
            lease.data = Value::Object(Map::new());
        }
        let spec = &mut lease.data["spec"];
        if !spec.is_object() {
            *spec = Value::Object(Map::new());
        }
        spec["holderIdentity"] = json!(self.holder);
        spec["leaseDurationSeconds"] = json!(self.seconds);
        spec["acquireTime"] = json!(self.acquired);
        spec["renewTime"] = json!(self.renewed);
        spec["leaseTransitions"] = json!(self.transitions);
    }

    /// Time that the record is valid after a change of it was observed.
    pub(super) fn duration(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds).unwrap_or_default())
    }
}

/// Formats a calendar time as a Kubernetes `MicroTime`.
pub(super) fn micro_time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarantee_9_times_have_microseconds_and_are_in_utc() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_893_456_000, 12_345_678);
        assert_eq!(micro_time(time), "2030-01-01T00:00:00.012345Z");
        assert_eq!(micro_time(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn a_record_is_read_as_written_and_other_fields_are_kept() {
        let record = Record {
            holder: "me".to_owned(),
            seconds: 15,
            acquired: "2030-01-01T00:00:00.000000Z".to_owned(),
            renewed: "2030-01-01T00:00:02.000000Z".to_owned(),
            transitions: 3,
        };
        let mut lease: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "a", "annotations": {"kept": "yes"}},
            "spec": {"holderIdentity": "other", "strategy": "OldestEmulationVersion"},
        }))
        .unwrap();
        record.write(&mut lease);
        assert_eq!(Record::of(&lease), record);
        assert_eq!(lease.data["spec"]["strategy"], "OldestEmulationVersion");
        assert!(lease.metadata.annotations.is_some());
    }

    #[test]
    fn an_empty_lease_is_free() {
        let empty: DynamicObject = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert_eq!(Record::of(&empty), Record::default());
        let mut lease = empty;
        Record::default().write(&mut lease);
        assert_eq!(lease.data["spec"]["holderIdentity"], "");
    }
}
