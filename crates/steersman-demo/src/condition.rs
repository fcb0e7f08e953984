// SPDX-License-Identifier: Apache-2.0
//! Status conditions of the operator's kinds, in the form that `kubectl wait --for=condition=Ready` reads.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A status condition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason, as one word for programs.
    pub reason: String,
    /// Reason, for people.
    pub message: String,
    /// Time when the status last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
    /// Generation of the spec that the condition is about.
    #[serde(default)]
    pub observed_generation: i64,
}

/// Kinds with the condition Ready.
pub trait Ready {
    /// Returns the conditions of the object.
    fn conditions(&self) -> &[Condition];

    /// Reports whether an object is ready for its current generation. A generation that was not reconciled yet is not
    /// ready.
    fn is_ready(&self) -> bool;
}

impl Condition {
    /// Creates the condition Ready for an object of this generation, with the current time.
    #[must_use]
    pub fn ready(is_ready: bool, generation: Option<i64>, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_: "Ready".to_owned(),
            status: if is_ready { "True" } else { "False" }.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            last_transition_time: Time(Timestamp::now()),
            observed_generation: generation.unwrap_or(0),
        }
    }

    /// Keeps the transition time of the previous condition if the status is the same. Otherwise every reconcile would
    /// change it.
    #[must_use]
    pub fn since(mut self, before: &[Self]) -> Self {
        let same = |old: &&Self| old.type_ == self.type_ && old.status == self.status;
        if let Some(old) = before.iter().find(same) {
            self.last_transition_time = old.last_transition_time.clone();
        }
        self
    }
}

/// Reports whether the conditions state that an object of this generation is ready.
pub(super) fn is_ready(conditions: &[Condition], generation: Option<i64>) -> bool {
    conditions.iter().any(|one| {
        one.type_ == "Ready" && one.status == "True" && Some(one.observed_generation) == generation
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_stays_as_it_was_keeps_its_time() {
        let mut old = Condition::ready(true, Some(1), "Serving", "1 of 1");
        old.last_transition_time = Time(Timestamp::UNIX_EPOCH);
        let before = [old];
        let same = Condition::ready(true, Some(2), "Serving", "2 of 2").since(&before);
        assert_eq!(same.last_transition_time.0, Timestamp::UNIX_EPOCH);
        let other = Condition::ready(false, Some(2), "Starting", "1 of 2").since(&before);
        assert_ne!(other.last_transition_time.0, Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn a_condition_about_former_wishes_says_nothing_of_the_present_ones() {
        let conditions = [Condition::ready(true, Some(1), "Serving", "")];
        assert!(is_ready(&conditions, Some(1)));
        assert!(!is_ready(&conditions, Some(2)));
    }
}
