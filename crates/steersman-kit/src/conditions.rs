// SPDX-License-Identifier: Apache-2.0
//! Status conditions: a declared set of them, and a summary that is computed.
//!
//! A controller declares its conditions as an enum with `#[derive(ConditionSet)]`, and has them in its status as
//! [`Conditions<S>`](Conditions). On the wire they are `metav1.Condition`s in a list map with the key `type`, so that several
//! controllers can own conditions of one object by server-side apply.
//!
//! # Guarantees
//! 1. [`initialise`](Conditions::initialise) sets each declared condition that is missing to `Unknown`, and changes no other.
//! 2. `lastTransitionTime` changes only when the status of a condition changes. It is the time of the given [`ObservedAt`].
//! 3. [`summarise`](Conditions::summarise) computes the summary from the declared conditions alone: `False` if one of them is
//!    bad, otherwise `Unknown` if one is unknown, otherwise `True`. For a negative condition `True` is bad; informational
//!    conditions do not count. Reason and message are those of the first such condition in order of declaration.
//! 4. A condition that was not set for the generation that is summarised becomes `Unknown`, with the reason `NotObserved`: it was
//!    a statement about a former spec. A condition that was set for this generation keeps its value.
//! 5. Conditions of other controllers are never changed. [`retain_own`](Conditions::retain_own) leaves them out of a
//!    server-side apply, which thus neither owns nor removes them.
//! 6. Every condition that is set is valid for metav1: characters that a reason must not have are left out, and too long reasons
//!    and messages are cut. The limits are 1024 and 32768 characters.
//! 7. The order of own conditions is the order of declaration after the summary. Two lists with the same conditions are equal in
//!    any order.
//! 8. With [`ConditionSet::KSTATUS`], `Reconciling` is `True` while the summary is not `True`, unless the work is
//!    [stalled](Conditions::set_stalled); then `Stalled` is `True`, and the summary is not. Neither exists otherwise.
//!
//! # Example
//! ```
//! use steersman_kit::{ConditionSet, Conditions, ObservedAt};
//!
//! #[derive(ConditionSet, Clone, Copy, Debug)]
//! enum Cond {
//!     Available,
//!     #[condition(negative)]
//!     Degraded,
//! }
//!
//! let mut conditions = Conditions::<Cond>::default();
//! let at = ObservedAt::new(Some(1), "2026-01-01T00:00:00Z".parse()?);
//! conditions.initialise(at);
//! conditions.set_true(Cond::Available, at);
//! conditions.set_true(Cond::Degraded, at);
//! conditions.summarise(at);
//! assert_eq!(conditions.summary().map(|ready| &*ready.status), Some("False"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod limits;
mod set;
mod summary;
mod wire;

use std::{fmt, marker::PhantomData};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

pub use self::set::{ConditionList, ConditionSet, ConditionStatus, NoConditions};

/// Generation and time of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedAt {
    generation: Option<i64>,
    time: Timestamp,
}

impl ObservedAt {
    /// Creates an observation of an object at this generation. The time is cut to seconds, as it is on the wire.
    #[must_use]
    pub fn new(generation: Option<i64>, time: Timestamp) -> Self {
        let time = Timestamp::from_second(time.as_second()).unwrap_or(time);
        Self { generation, time }
    }

    /// The observed generation. `None` for kinds without generations, such as ConfigMaps.
    #[must_use]
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    /// The time of the observation, in whole seconds.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        self.time
    }
}

/// The conditions of a status: those of the set `S`, and those of other controllers.
///
/// See the documentation of [`ConditionSet`] for the declaration of a set.
pub struct Conditions<S> {
    list: Vec<Condition>,
    /// Reason and message of [`set_stalled`](Self::set_stalled); not on the wire.
    stalled: Option<(String, String)>,
    set: PhantomData<fn() -> S>,
}

impl<S> Conditions<S> {
    /// Returns all conditions, those of other controllers included.
    pub fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.list.iter()
    }

    /// Returns the condition of this type, which can be one of another controller.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Condition> {
        self.list.iter().find(|condition| condition.type_ == name)
    }

    fn with(list: Vec<Condition>) -> Self {
        Self {
            list,
            stalled: None,
            set: PhantomData,
        }
    }
}

impl<S: ConditionSet> Conditions<S> {
    /// Returns a condition; `None` before [`initialise`](Self::initialise).
    #[must_use]
    pub fn get(&self, condition: S) -> Option<&Condition> {
        self.named(condition.name())
    }

    /// Returns the status of a condition; `Unknown` if it is missing.
    #[must_use]
    pub fn status(&self, condition: S) -> ConditionStatus {
        self.get(condition).map_or(ConditionStatus::Unknown, |found| {
            ConditionStatus::of(&found.status)
        })
    }

    /// Returns the summary condition; `None` before the first [`summarise`](Self::summarise), or if the set has no summary.
    #[must_use]
    pub fn summary(&self) -> Option<&Condition> {
        self.named(S::SUMMARY).filter(|_| !S::SUMMARY.is_empty())
    }

    /// Returns true if the summary is `True` for this generation. The summary of a former generation does not count.
    #[must_use]
    pub fn is_ready(&self, generation: Option<i64>) -> bool {
        self.summary()
            .is_some_and(|summary| summary.status == "True" && summary.observed_generation == generation)
    }

    /// Sets a condition. Its transition time changes only with its status.
    ///
    /// `reason` is a word in CamelCase. Other characters are left out; an empty reason becomes `Unspecified`.
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
        let name = condition.name();
        let word = name.rsplit('/').next().unwrap_or(name);
        self.set(condition, ConditionStatus::True, word, "", at);
    }

    /// Sets a condition to `False`.
    pub fn set_false(&mut self, condition: S, reason: &str, message: &str, at: ObservedAt) {
        self.set(condition, ConditionStatus::False, reason, message, at);
    }

    /// Sets a condition to `Unknown`.
    pub fn set_unknown(&mut self, condition: S, reason: &str, message: &str, at: ObservedAt) {
        self.set(condition, ConditionStatus::Unknown, reason, message, at);
    }

    /// Sets the declared conditions that are missing to `Unknown`, with the reason `Pending`. The others keep their values.
    pub fn initialise(&mut self, at: ObservedAt) {
        for condition in S::ALL {
            if self.get(*condition).is_none() {
                self.set_unknown(*condition, "Pending", "not reconciled yet", at);
            }
        }
    }

    /// Removes the conditions of other controllers, and sorts its own.
    ///
    /// Call it on a copy of the status before a server-side apply: a field manager owns every condition that it sends.
    pub fn retain_own(&mut self) {
        self.list
            .retain(|condition| Self::place(&condition.type_).is_some());
        self.sort();
    }

    /// As [`retain_own`](Self::retain_own), with other conditions that belong to the controller.
    pub(crate) fn retain_own_and(&mut self, is_own: impl Fn(&str) -> bool) {
        self.list
            .retain(|condition| Self::place(&condition.type_).is_some() || is_own(&condition.type_));
        self.sort();
    }

    /// Sets a condition that is not in the set.
    pub(crate) fn set_other(
        &mut self,
        name: &str,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        at: ObservedAt,
    ) {
        self.set_named(name, status, reason, message, at);
    }

    /// Removes the conditions that `is_kept` rejects.
    pub(crate) fn retain_named(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.list.retain(|condition| is_kept(&condition.type_));
    }

    fn set_named(
        &mut self,
        name: &str,
        status: ConditionStatus,
        reason: &str,
        message: &str,
        at: ObservedAt,
    ) {
        if name.is_empty() {
            return; // `NoConditions`
        }
        let new = Condition {
            type_: name.to_owned(),
            status: status.as_str().to_owned(),
            reason: limits::reason(reason),
            message: limits::message(message),
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

    /// Returns the place of a condition among its own; `None` for conditions of other controllers.
    fn place(name: &str) -> Option<usize> {
        if !S::SUMMARY.is_empty() && name == S::SUMMARY {
            return Some(0);
        }
        if let Some(place) = S::ALL.iter().position(|one| one.name() == name) {
            return Some(1 + place);
        }
        let kstatus = summary::KSTATUS.iter().position(|one| *one == name);
        kstatus
            .filter(|_| S::KSTATUS)
            .map(|place| 1 + S::ALL.len() + place)
    }

    /// Puts its own conditions in order, before those of other controllers.
    fn sort(&mut self) {
        self.list
            .sort_by_key(|condition| Self::place(&condition.type_).unwrap_or(usize::MAX));
    }
}

impl<S> Clone for Conditions<S> {
    fn clone(&self) -> Self {
        Self {
            list: self.list.clone(),
            stalled: self.stalled.clone(),
            set: PhantomData,
        }
    }
}

impl<S> Default for Conditions<S> {
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

impl<S> PartialEq for Conditions<S> {
    fn eq(&self, other: &Self) -> bool {
        let has = |condition: &Condition| other.named(&condition.type_) == Some(condition);
        self.list.len() == other.list.len() && self.list.iter().all(has)
    }
}

impl<S> fmt::Debug for Conditions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.list).finish()
    }
}
