// SPDX-License-Identifier: Apache-2.0
//! Published presence of a kind and its incarnation.

use std::sync::Arc;

use steersman_core::{Presence, PresenceStatus};
use tokio::sync::watch;

/// Published presence of a kind.
///
/// CRDs have uids; discovery has none. A kind that was reported as present by one of them and then by the other is
/// treated as the same incarnation, so that nothing restarts because a permission was granted or revoked. Both report
/// whether the kind is namespaced, which cannot change for one CRD.
pub(super) struct PresencePublisher {
    presence_statuses: watch::Sender<PresenceStatus>,
    present: Option<Incarnation>,
    /// Number of incarnations so far.
    count: u64,
}

/// One incarnation of the kind, from installed to removed.
struct Incarnation {
    /// Published identifier.
    token: Arc<str>,
    /// The uid of the CRD, if known.
    uid: Option<Arc<str>>,
    /// Set to whether the kind is namespaced, if known.
    namespaced: Option<bool>,
}

impl PresencePublisher {
    pub(super) fn new(presence_status: PresenceStatus) -> Self {
        Self {
            presence_statuses: watch::Sender::new(presence_status),
            present: None,
            count: 0,
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<PresenceStatus> {
        self.presence_statuses.subscribe()
    }

    pub(super) fn now(&self) -> PresenceStatus {
        self.presence_statuses.borrow().clone()
    }

    /// Reports whether the last published presence is present and can belong to this uid.
    pub(super) fn is_of(&self, uid: &Arc<str>, namespaced: Option<bool>) -> bool {
        self.present
            .as_ref()
            .is_some_and(|present| present.may_be(Some(uid), namespaced))
    }

    /// Publishes a presence, if it differs from the last one.
    pub(super) fn publish(&mut self, mut presence_status: PresenceStatus, namespaced: Option<bool>) {
        match presence_status.presence {
            Presence::Present => {
                let uid = presence_status.incarnation.take();
                presence_status.incarnation = Some(self.appeared(uid, namespaced));
            }
            Presence::Absent => self.present = None,
            // The kind might still be present.
            Presence::Unknown => {}
        }
        self.presence_statuses
            .send_if_modified(|before| std::mem::replace(before, presence_status.clone()) != presence_status);
    }

    /// Returns the identifier of the incarnation with this uid.
    fn appeared(&mut self, uid: Option<Arc<str>>, namespaced: Option<bool>) -> Arc<str> {
        match &mut self.present {
            Some(present) if present.may_be(uid.as_ref(), namespaced) => {
                present.uid = present.uid.take().or(uid);
                present.namespaced = present.namespaced.or(namespaced);
                Arc::clone(&present.token)
            }
            present => {
                self.count += 1;
                let token = uid
                    .clone()
                    .unwrap_or_else(|| format!("discovered, {}", self.count).into());
                *present = Some(Incarnation {
                    token: Arc::clone(&token),
                    uid,
                    namespaced,
                });
                token
            }
        }
    }
}

impl Incarnation {
    fn may_be(&self, uid: Option<&Arc<str>>, namespaced: Option<bool>) -> bool {
        may_equal(self.uid.as_ref(), uid) && may_equal(self.namespaced.as_ref(), namespaced.as_ref())
    }
}

/// Compares two optional values. An unknown value can equal any value.
fn may_equal<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
    one.is_none() || other.is_none() || one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence_status(presence: Presence, uid: Option<&str>) -> PresenceStatus {
        let presence_status = PresenceStatus::new(presence, "");
        match uid {
            Some(uid) => presence_status.incarnation(uid),
            None => presence_status,
        }
    }

    /// Publishes each of these in turn and returns the identifiers.
    fn incarnations(presence_statuses: &[(Presence, Option<&str>)]) -> Vec<Option<Arc<str>>> {
        let mut told = PresencePublisher::new(presence_status(Presence::Unknown, None));
        let tell = |(presence, uid): &(Presence, Option<&str>)| {
            told.publish(presence_status(*presence, *uid), None);
            told.now().incarnation
        };
        presence_statuses.iter().map(tell).collect()
    }

    #[test]
    fn guarantee_5_a_permission_that_is_revoked_and_granted_keeps_the_incarnation() {
        use Presence::{Present, Unknown};
        let told = incarnations(&[
            (Present, Some("1")),
            (Unknown, None),
            (Present, None),
            (Present, Some("1")),
            (Present, Some("2")),
        ]);
        assert_eq!(told[0], told[2]);
        assert_eq!(told[0], told[3]);
        assert_ne!(told[0], told[4]);
    }

    #[test]
    fn guarantee_5_another_scope_in_discovery_is_another_incarnation() {
        let mut told = PresencePublisher::new(presence_status(Presence::Unknown, None));
        let found = [Some(true), None, Some(true), Some(false)].map(|namespaced| {
            told.publish(presence_status(Presence::Present, None), namespaced);
            told.now().incarnation
        });
        assert_eq!([&found[0]; 2], [&found[1], &found[2]]);
        assert_ne!(found[0], found[3]);
    }

    #[test]
    fn guarantee_5_a_definition_with_another_scope_than_discovery_found_is_another_incarnation() {
        for (namespaced, is_same) in [(Some(true), true), (Some(false), false)] {
            let mut told = PresencePublisher::new(presence_status(Presence::Unknown, None));
            told.publish(presence_status(Presence::Present, None), Some(true));
            let found = told.now().incarnation;
            assert_eq!(told.is_of(&"1".into(), namespaced), is_same);
            told.publish(presence_status(Presence::Present, Some("1")), namespaced);
            assert_eq!(told.now().incarnation == found, is_same);
        }
    }

    #[test]
    fn guarantee_5_a_later_definition_keeps_the_incarnation_from_discovery() {
        use Presence::{Absent, Present};
        let told = incarnations(&[
            (Present, None),
            (Present, Some("1")),
            (Present, Some("2")),
            (Absent, None),
            (Present, None),
        ]);
        assert_eq!(told[0], told[1]);
        assert_ne!(told[1], told[2]);
        assert!(!told[..4].contains(&told[4]), "{told:?}");
    }
}
