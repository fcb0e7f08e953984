// SPDX-License-Identifier: Apache-2.0
//! The declaration of conditions.

use super::Conditions;

/// The conditions that a controller sets: an enum with `#[derive(ConditionSet)]`.
///
/// ```
/// use steersman_kit::ConditionSet;
///
/// #[derive(ConditionSet, Clone, Copy, Debug)]
/// #[conditions(summary = "Ready")] // the default; `Succeeded` for a kind whose work ends
/// enum Cond {
///     Available,
///     #[condition(name = "example.com/Registered")]
///     Registered,
///     #[condition(negative)] // `True` is the bad state
///     Degraded,
///     #[condition(informational)] // does not count for the summary
///     UpToDate,
/// }
///
/// assert_eq!(Cond::SUMMARY, "Ready");
/// assert_eq!(Cond::Registered.name(), "example.com/Registered");
/// assert!(Cond::Degraded.negative() && Cond::UpToDate.informational());
/// ```
///
/// Controllers that share an object have different sets, each with its own summary, or with `#[conditions(no_summary)]`.
/// `#[conditions(kstatus)]` adds the conditions `Reconciling` and `Stalled` of kstatus; see
/// [`Conditions::set_stalled`].
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
    /// True if `Reconciling` and `Stalled` are maintained as well. Default: false.
    const KSTATUS: bool = false;

    /// Returns the type of the condition on the wire.
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

/// Status of a condition, from the best to the worst of a positive condition.
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
    /// Returns the status on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::Unknown => "Unknown",
            Self::False => "False",
        }
    }

    /// Parses the status on the wire. Everything but `True` and `False` is `Unknown`.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// The set that a field of type [`Conditions`] has; for `#[derive(Status)]`.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the field `conditions` of a status is a `Conditions<C>`, not `{Self}`",
    label = "write `Conditions<C>` here, where `C` is an enum with `#[derive(ConditionSet)]`"
)]
pub trait ConditionList {
    /// The set.
    type Set: ConditionSet;
}

impl<S: ConditionSet> ConditionList for Conditions<S> {
    type Set = S;
}

/// A set without conditions and without a summary. In place of a condition it means that nothing is reported, as in
/// `work.child(NoConditions, config_map)`.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is a value without content")]
pub struct NoConditions;

impl ConditionSet for NoConditions {
    const SUMMARY: &'static str = "";
    const ALL: &'static [Self] = &[];

    fn name(self) -> &'static str {
        ""
    }
}
