// SPDX-License-Identifier: Apache-2.0
//! Groups of keys that share the workers in turn.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

/// Group of a key: an outer part and an inner part, each served in turn.
///
/// With clusters as outer and namespaces as inner parts, clusters take turns, and within a cluster's turn its
/// namespaces take turns. Neither a noisy cluster nor a noisy namespace delays the others by more than its one turn.
///
/// The parts are kept as 64-bit hashes. If two names collide, they share a turn; there is no other effect.
///
/// ```
/// use steersman_queue::Group;
///
/// let group = Group::new("prod-eu").inner("kube-system");
/// assert_ne!(group, Group::new("prod-us").inner("kube-system"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Group {
    pub(crate) outer: u64,
    pub(crate) inner: u64,
}

impl Group {
    /// Creates the group of all keys in `outer`.
    #[must_use]
    pub fn new<T: Hash + ?Sized>(outer: &T) -> Self {
        Self {
            outer: hash(outer),
            inner: 0,
        }
    }

    /// Returns the part of this group that is `inner`.
    #[must_use]
    pub fn inner<T: Hash + ?Sized>(self, inner: &T) -> Self {
        Self {
            inner: hash(inner),
            ..self
        }
    }
}

fn hash<T: Hash + ?Sized>(value: &T) -> u64 {
    FixedState::with_seed(0).hash_one(value)
}

/// Assigns a [`Group`] to each key.
///
/// It is called under the queue's lock, so it has to be quick, must not call the queue, and must always return the same
/// group for the same key. Closures implement it.
pub trait Grouping<K>: Send + Sync + 'static {
    /// Returns the group of `key`.
    fn group(&self, key: &K) -> Group;
}

impl<K, F> Grouping<K> for F
where
    F: Fn(&K) -> Group + Send + Sync + 'static,
{
    fn group(&self, key: &K) -> Group {
        self(key)
    }
}
