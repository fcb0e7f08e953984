// SPDX-License-Identifier: Apache-2.0
//! How far a store has got: as a whole, and each namespace where they are listed one by one.
//!
//! The whole has got as far as the slowest namespace. Whoever asks about one object wants to know about its namespace:
//! another may be far behind, or be forbidden and stay there.

use std::{cmp::Ordering, collections::BTreeMap};

use super::state::Came;
use crate::revision::compare;

#[derive(Debug, Default)]
pub(super) struct Reached {
    whole: Reach,
    /// None where all namespaces are listed as one.
    parts: BTreeMap<String, Reach>,
    /// How many lists were begun, of whatever.
    lists: u32,
}

#[derive(Debug, Default)]
struct Reach {
    revision: String,
    /// The number of the list that was begun last.
    begun: u32,
    /// The number of the list that was last carried through.
    carried: u32,
    /// The number of the list of the newest state that was last carried through.
    newest: u32,
}

impl Reached {
    /// Of the whole.
    pub(super) fn revision(&self) -> &str {
        &self.whole.revision
    }

    /// All changes in this namespace are there up to here.
    pub(super) fn revision_in(&self, namespace: &str) -> &str {
        &self.of(namespace).revision
    }

    /// The number of the last list that was begun, of whatever.
    pub(super) fn lists_begun(&self) -> u32 {
        self.lists
    }

    /// The number of the last list that had this namespace and was carried through.
    pub(super) fn listed_in(&self, namespace: &str) -> u32 {
        self.of(namespace).carried
    }

    /// The same of lists of the newest state.
    pub(super) fn newest_list_in(&self, namespace: &str) -> u32 {
        self.of(namespace).newest
    }

    fn of(&self, namespace: &str) -> &Reach {
        self.parts.get(namespace).unwrap_or(&self.whole)
    }

    fn of_mut(&mut self, part: &str) -> &mut Reach {
        self.parts.get_mut(part).unwrap_or(&mut self.whole)
    }

    /// From now on a namespace is listed by itself. It has got as far as the whole, where that had it.
    pub(super) fn part(&mut self, namespace: &str, was_in_whole: bool) {
        let revision = if was_in_whole {
            self.whole.revision.clone()
        } else {
            String::new()
        };
        let reach = Reach {
            revision,
            ..Reach::default()
        };
        self.parts.entry(namespace.to_owned()).or_insert(reach);
    }

    /// A namespace is not listed by itself any more.
    pub(super) fn unite(&mut self, namespace: &str) {
        self.parts.remove(namespace);
    }

    /// A list begins: of a namespace that is listed by itself, or of all of them as the empty name.
    pub(super) fn begin(&mut self, part: &str) {
        self.lists += 1;
        let number = self.lists;
        self.of_mut(part).begun = number;
    }

    /// The list that was begun last has been carried through.
    pub(super) fn end(&mut self, part: &str, came: Came) {
        let reach = self.of_mut(part);
        reach.carried = reach.begun;
        if came == Came::Newest {
            reach.newest = reach.begun;
        }
    }

    /// Goes on to a revision, and back only with a list of the newest state, and says whether that is a change. Where two
    /// cannot be compared, the one that came last counts.
    pub(super) fn advance(&mut self, part: &str, revision: &str, came: Came) -> bool {
        let reach = self.of_mut(part);
        let is_older = match came {
            Came::InOrder => compare(revision, &reach.revision).is_some_and(Ordering::is_le),
            Came::Newest => revision == reach.revision,
        };
        let is_change = !is_older && !matches!(revision, "" | "0");
        if is_change {
            reach.revision.clear();
            reach.revision.push_str(revision);
        }
        is_change
    }

    /// Nothing is there any more.
    pub(super) fn clear(&mut self) {
        self.whole.revision.clear();
        self.parts.values_mut().for_each(|part| part.revision.clear());
    }
}
