// SPDX-License-Identifier: Apache-2.0
//! Conditions of a status.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The conditions that a controller sets: an enum with `#[derive(ConditionSet)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of conditions",
    label = "this must be an enum with `#[derive(ConditionSet)]`",
    note = "add `#[derive(ConditionSet, Clone, Copy)]` to `{Self}`"
)]
pub trait ConditionSet: Copy + Send + Sync + 'static {
    /// Type of the summary condition; empty for none.
    const SUMMARY: &'static str;
    /// All conditions, in order of declaration.
    const ALL: &'static [Self];

    /// Type of the condition on the wire.
    fn name(self) -> &'static str;

    /// Returns true if the summary ignores the condition.
    fn informational(self) -> bool {
        false
    }

    /// Returns true if `True` is the bad state.
    fn negative(self) -> bool {
        false
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ConditionStatus {
    /// `True`.
    True,
    /// `Unknown`.
    Unknown,
    /// `False`.
    False,
}

impl ConditionStatus {
    /// The status on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::Unknown => "Unknown",
            Self::False => "False",
        }
    }
}

/// Generation and time of an observation.
#[derive(Clone, Copy, Debug)]
pub struct ObservedAt {
    generation: Option<i64>,
    time: Timestamp,
}

impl ObservedAt {
    /// Creates an observation of an object at this generation.
    #[must_use]
    pub fn new(generation: Option<i64>, time: Timestamp) -> Self {
        Self { generation, time }
    }

    /// The observed generation.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    /// The time of the observation.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        self.time
    }
}

/// The conditions of a status, as metav1 conditions on the wire.
pub struct Conditions<S> {
    list: Vec<Condition>,
    set: PhantomData<fn() -> S>,
}

impl<S> Conditions<S> {
    /// All conditions.
    pub fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.list.iter()
    }

    /// Returns the condition of this type.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.type_ == name)
    }
}

impl<S: ConditionSet> Conditions<S> {
    /// Returns a condition.
    #[must_use]
    pub fn get(&self, condition: S) -> Option<&Condition> {
        self.named(condition.name())
    }

    /// Returns the summary condition.
    #[must_use]
    pub fn summary(&self) -> Option<&Condition> {
        self.named(S::SUMMARY)
    }

    /// Sets a condition. Its transition time changes only with its status.
    pub fn set(
        &mut self,
        condition: S,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        at: ObservedAt,
    ) {
        self.set_named(condition.name(), status, reason, message, at);
    }

    /// Sets a condition to `True`, with its name as the reason.
    pub fn set_true(&mut self, condition: S, at: ObservedAt) {
        self.set(condition, ConditionStatus::True, condition.name(), "", at);
    }

    /// Sets a condition to `False`.
    pub fn set_false(&mut self, condition: S, reason: &str, message: &str, at: ObservedAt) {
        self.set(condition, ConditionStatus::False, reason, message, at);
    }

    /// Sets a condition to `Unknown`.
    pub fn set_unknown(&mut self, condition: S, reason: &str, message: &str, at: ObservedAt) {
        self.set(condition, ConditionStatus::Unknown, reason, message, at);
    }

    /// Sets the conditions that are not set to `Unknown`, and removes conditions that are not of this set.
    pub fn initialise(&mut self, at: ObservedAt) {
        let is_ours = |name: &str| name == S::SUMMARY || S::ALL.iter().any(|one| one.name() == name);
        self.list.retain(|condition| is_ours(&condition.type_));
        for condition in S::ALL {
            if self.get(*condition).is_none() {
                self.set_unknown(*condition, "Pending", "", at);
            }
        }
    }

    /// Computes the summary condition: `False` before `Unknown` before `True`.
    pub fn summarise(&mut self, at: ObservedAt) {
        if S::SUMMARY.is_empty() {
            return;
        }
        let mut worst: Option<(ConditionStatus, String, String)> = None;
        for condition in S::ALL.iter().filter(|condition| !condition.informational()) {
            let Some(found) = self.get(*condition) else {
                continue;
            };
            let bad = if condition.negative() { "True" } else { "False" };
            let status = match &*found.status {
                status if status == bad => ConditionStatus::False,
                "Unknown" => ConditionStatus::Unknown,
                _ => continue,
            };
            if worst.as_ref().is_none_or(|(worst, ..)| *worst < status) {
                let reason = format!("{}{}", condition.name(), found.reason);
                worst = Some((status, reason, found.message.clone()));
            }
        }
        match worst {
            Some((status, reason, message)) => self.set_named(S::SUMMARY, status, &reason, &message, at),
            None => self.set_named(S::SUMMARY, ConditionStatus::True, S::SUMMARY, "", at),
        }
        self.list.sort_by_key(|condition| {
            let place = S::ALL.iter().position(|one| one.name() == condition.type_);
            (condition.type_ != S::SUMMARY, place)
        });
    }

    fn set_named(
        &mut self,
        name: &str,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        at: ObservedAt,
    ) {
        let new = Condition {
            type_: name.to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(at.time),
            observed_generation: at.generation,
        };
        match self.list.iter_mut().find(|condition| condition.type_ == name) {
            Some(old) if old.status == new.status => {
                *old = Condition {
                    last_transition_time: old.last_transition_time.clone(),
                    ..new
                }
            }
            Some(old) => *old = new,
            None => self.list.push(new),
        }
    }
}

impl<S> Clone for Conditions<S> {
    fn clone(&self) -> Self {
        Self {
            list: self.list.clone(),
            set: PhantomData,
        }
    }
}

impl<S> Default for Conditions<S> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            set: PhantomData,
        }
    }
}

impl<S> PartialEq for Conditions<S> {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl<S> fmt::Debug for Conditions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}

impl<S> Serialize for Conditions<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        self.list.serialize(serializer)
    }
}

impl<'de, S> Deserialize<'de> for Conditions<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Go writes a nil slice as null.
        let list = Option::<Vec<Condition>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(Self {
            list,
            set: PhantomData,
        })
    }
}

impl<S> JsonSchema for Conditions<S> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Conditions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": {"type": "string", "maxLength": 316},
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                    "message": {"type": "string", "maxLength": 32768},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                    "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                },
            },
        })
    }
}

/// A set without conditions.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum NoConditions {}

impl ConditionSet for NoConditions {
    const SUMMARY: &'static str = "";
    const ALL: &'static [Self] = &[];

    fn name(self) -> &'static str {
        match self {}
    }
}
