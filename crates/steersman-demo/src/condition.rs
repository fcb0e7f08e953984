// SPDX-License-Identifier: Apache-2.0
//! What the kinds of this operator say of themselves, in the form that `kubectl wait --for=condition=Ready` reads.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something that holds of an object, or does not.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word for programs.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Since when the status is what it is.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
    /// The generation of the wishes that it is about.
    #[serde(default)]
    pub observed_generation: i64,
}

/// Kinds that can be ready.
pub trait Ready {
    /// What is known of an object of it.
    fn conditions(&self) -> &[Condition];

    /// Whether an object is ready as its present wishes ask for; wishes that nobody has looked at yet are not fulfilled.
    fn is_ready(&self) -> bool;
}

impl Condition {
    /// Whether an object of this generation is what it is meant to be, from now on.
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

    /// The same with the time at which it came to be so, if it was so before. Without that, every look would change it.
    #[must_use]
    pub fn since(mut self, before: &[Self]) -> Self {
        let same = |old: &&Self| old.type_ == self.type_ && old.status == self.status;
        if let Some(old) = before.iter().find(same) {
            self.last_transition_time = old.last_transition_time.clone();
        }
        self
    }
}

/// Whether the conditions say that an object of this generation is ready.
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
