// SPDX-License-Identifier: Apache-2.0
//! Whether something is there, as far as that is known.

use std::{fmt, ops::Not, sync::Arc};

/// Whether something is there. Not to know it is an answer of its own: it stops nothing that runs, and starts nothing.
///
/// They combine as in Kleene's logic: what is unknown matters only where the rest does not decide.
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
    /// It is there.
    Present,
    /// It is not there.
    Absent,
    /// Nobody can tell at the moment.
    Unknown,
}

impl Presence {
    /// Both are there.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Absent, _) | (_, Self::Absent) => Self::Absent,
            (Self::Present, Self::Present) => Self::Present,
            _ => Self::Unknown,
        }
    }

    /// One of them is there.
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

/// A presence with its reason, and which incarnation it is that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sighting {
    /// Whether it is there.
    pub presence: Presence,
    /// What tells it from another one that had its name, such as a uid, where something does.
    pub incarnation: Option<Arc<str>>,
    /// Why, in words for people.
    pub reason: Arc<str>,
    /// Whether it is unknown because an answer is on its way, and not because there is trouble.
    pub is_pending: bool,
}

impl Sighting {
    /// With no incarnation.
    pub fn new(presence: Presence, reason: impl Into<Arc<str>>) -> Self {
        Self {
            presence,
            incarnation: None,
            reason: reason.into(),
            is_pending: false,
        }
    }

    /// Unknown until an answer comes that is on its way.
    pub fn pending(reason: impl Into<Arc<str>>) -> Self {
        Self {
            is_pending: true,
            ..Self::new(Presence::Unknown, reason)
        }
    }

    /// Of this incarnation.
    #[must_use]
    pub fn incarnation(mut self, incarnation: impl Into<Arc<str>>) -> Self {
        self.incarnation = Some(incarnation.into());
        self
    }

    /// Whether it is there.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.presence == Presence::Present
    }

    /// Whether it is certain that it is not there.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.presence == Presence::Absent
    }

    /// Both. An incarnation of both is made of those of each.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let presence = self.presence.and(other.presence);
        Self {
            incarnation: join(self.incarnation.as_ref(), other.incarnation.as_ref()),
            ..self.decide(other, presence)
        }
    }

    /// One of both. Which one of two that are there does not matter, so there is no incarnation.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let presence = self.presence.or(other.presence);
        Self {
            incarnation: None,
            ..self.decide(other, presence)
        }
    }

    /// The reasons of those that are as the whole is.
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

/// The opposite, for the same reason.
impl Not for Sighting {
    type Output = Self;

    fn not(self) -> Self {
        Self {
            presence: !self.presence,
            incarnation: None,
            ..self
        }
    }
}

impl fmt::Display for Sighting {
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
    fn the_reason_is_that_of_the_part_that_decides() {
        let there = Sighting::new(Present, "webs are installed").incarnation("1");
        let gone = Sighting::new(Absent, "gadgets are not installed");
        assert_eq!(&*there.and(&gone).reason, "gadgets are not installed");
        assert_eq!(&*there.or(&gone).reason, "webs are installed");
        let both = there.and(&Sighting::new(Present, "gadgets are installed").incarnation("2"));
        assert_eq!(both.incarnation.as_deref(), Some("1+2"));
    }

    #[test]
    fn an_answer_is_awaited_where_it_decides() {
        let (asked, there) = (
            Sighting::pending("not known yet"),
            Sighting::new(Present, "there"),
        );
        assert!(asked.and(&there).is_pending && (!asked.clone()).is_pending);
        assert!(!asked.or(&there).is_pending && !asked.and(&!there).is_pending);
    }
}
