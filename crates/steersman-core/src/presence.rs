// SPDX-License-Identifier: Apache-2.0
//! Three-valued presence of a kind or another resource.

use std::{fmt, ops::Not, sync::Arc};

/// Presence of a resource. `Unknown` stops nothing that runs, and starts nothing.
///
/// Values combine as in Kleene's logic: `Unknown` matters only if the other value does not decide.
///
/// ```
/// use steersman_core::Presence::{Absent, Present, Unknown};
///
/// assert_eq!(Absent.and(Unknown), Absent);
/// assert_eq!(Present.and(Unknown), Unknown);
/// assert_eq!(Present.or(Unknown), Present);
/// assert_eq!(!Unknown, Unknown);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there is no fourth")]
pub enum Presence {
    /// The resource exists.
    Present,
    /// The resource does not exist.
    Absent,
    /// The presence currently cannot be determined.
    Unknown,
}

impl Presence {
    /// Three-valued AND: `Absent` if either is absent, `Present` if both are present, otherwise `Unknown`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Absent, _) | (_, Self::Absent) => Self::Absent,
            (Self::Present, Self::Present) => Self::Present,
            _ => Self::Unknown,
        }
    }

    /// Three-valued OR: `Present` if either is present, `Absent` if both are absent, otherwise `Unknown`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        !(!self).and(!other)
    }
}

impl Not for Presence {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::Present => Self::Absent,
            Self::Absent => Self::Present,
            Self::Unknown => Self::Unknown,
        }
    }
}

impl From<bool> for Presence {
    fn from(is_there: bool) -> Self {
        if is_there { Self::Present } else { Self::Absent }
    }
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Present => "present",
            Self::Absent => "absent",
            Self::Unknown => "unknown",
        })
    }
}

/// A presence with its reason and its incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceStatus {
    /// The presence.
    pub presence: Presence,
    /// Identifier that distinguishes it from another resource with the same name, such as a uid, if there is one.
    pub incarnation: Option<Arc<str>>,
    /// Reason, for people.
    pub reason: Arc<str>,
    /// Set if the presence is unknown because an answer is pending, and not because of an error.
    pub is_pending: bool,
}

impl PresenceStatus {
    /// Creates a presence without an incarnation.
    pub fn new(presence: Presence, reason: impl Into<Arc<str>>) -> Self {
        Self {
            presence,
            incarnation: None,
            reason: reason.into(),
            is_pending: false,
        }
    }

    /// Creates an unknown presence whose answer is pending.
    pub fn pending(reason: impl Into<Arc<str>>) -> Self {
        Self {
            is_pending: true,
            ..Self::new(Presence::Unknown, reason)
        }
    }

    /// Sets the incarnation.
    #[must_use]
    pub fn incarnation(mut self, incarnation: impl Into<Arc<str>>) -> Self {
        self.incarnation = Some(incarnation.into());
        self
    }

    /// Reports whether the presence is `Present`.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.presence == Presence::Present
    }

    /// Reports whether the presence is `Absent`.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.presence == Presence::Absent
    }

    /// Combines both with `and`. The incarnation combines those of each.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let presence = self.presence.and(other.presence);
        Self {
            incarnation: join(self.incarnation.as_ref(), other.incarnation.as_ref()),
            ..self.decide(other, presence)
        }
    }

    /// Combines both with `or`. The result has no incarnation, because it does not depend on which of the two is
    /// present.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let presence = self.presence.or(other.presence);
        Self {
            incarnation: None,
            ..self.decide(other, presence)
        }
    }

    /// Joins the reasons of the values that equal the result.
    fn decide(&self, other: &Self, presence: Presence) -> Self {
        let reason = match (self.presence == presence, other.presence == presence) {
            (true, true) if self.reason != other.reason => {
                format!("{}; {}", self.reason, other.reason).into()
            }
            (true, _) => Arc::clone(&self.reason),
            _ => Arc::clone(&other.reason),
        };
        Self {
            is_pending: presence == Presence::Unknown && (self.is_pending || other.is_pending),
            ..Self::new(presence, reason)
        }
    }
}

/// Negates the presence, keeps the reason, and removes the incarnation.
impl Not for PresenceStatus {
    type Output = Self;

    fn not(self) -> Self {
        Self {
            presence: !self.presence,
            incarnation: None,
            ..self
        }
    }
}

impl fmt::Display for PresenceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.presence, self.reason)
    }
}

fn join(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> Option<Arc<str>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}+{other}").into()),
        (one, other) => one.or(other).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Presence::*, *};

    // R28
    #[test]
    fn presence_obeys_the_laws_of_three_valued_logic() {
        for a in [Present, Absent, Unknown] {
            assert_eq!(!!a, a);
            assert_eq!(a.and(a), a);
            assert_eq!(a.and(Present), a);
            assert_eq!(a.or(Absent), a);
            for b in [Present, Absent, Unknown] {
                assert_eq!(a.and(b), b.and(a));
                assert_eq!(!a.and(b), (!a).or(!b));
            }
        }
    }

    #[test]
    fn the_deciding_part_gives_the_reason() {
        let there = PresenceStatus::new(Present, "webs are installed").incarnation("1");
        let gone = PresenceStatus::new(Absent, "gadgets are not installed");
        assert_eq!(&*there.and(&gone).reason, "gadgets are not installed");
        assert_eq!(&*there.or(&gone).reason, "webs are installed");
        let both = there.and(&PresenceStatus::new(Present, "gadgets are installed").incarnation("2"));
        assert_eq!(both.incarnation.as_deref(), Some("1+2"));
    }

    #[test]
    fn waits_for_an_unknown_part_that_decides() {
        let (asked, there) = (
            PresenceStatus::pending("not known yet"),
            PresenceStatus::new(Present, "there"),
        );
        assert!(asked.and(&there).is_pending && (!asked.clone()).is_pending);
        assert!(!asked.or(&there).is_pending && !asked.and(&!there).is_pending);
    }
}
