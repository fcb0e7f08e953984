// SPDX-License-Identifier: Apache-2.0
//! The revision that a store has reached: as a whole, and by namespace if namespaces are listed separately.
//!
//! The whole store has reached the revision of the slowest namespace. For one object, the revision of its namespace matters:
//! another namespace can be far behind, or be forbidden and stay there.

use std::{cmp::Ordering, collections::BTreeMap};

use super::state::ReadConsistency;
use crate::revision::compare;

#[derive(Debug, Default)]
pub(super) struct RevisionTracker {
    whole: NamespaceRevision,
    /// Empty if all namespaces are listed together.
    parts: BTreeMap<String, NamespaceRevision>,
    /// Number of lists begun, of any part.
    lists: u32,
}

#[derive(Debug, Default)]
struct NamespaceRevision {
    revision: String,
    /// The number of the list that began last.
    begun: u32,
    /// The number of the last complete list.
    last_complete_list: u32,
    /// The number of the last complete list of the newest state.
    newest: u32,
}

impl RevisionTracker {
    /// Returns the revision of the whole store.
    pub(super) fn revision(&self) -> &str {
        &self.whole.revision
    }

    /// Returns the revision up to which all changes of this namespace are stored.
    pub(super) fn revision_in(&self, namespace: &str) -> &str {
        &self.of(namespace).revision
    }

    /// Returns the number of the last list that began, of any part.
    pub(super) fn lists_begun(&self) -> u32 {
        self.lists
    }

    /// Returns the number of the last complete list that covered this namespace.
    pub(super) fn listed_in(&self, namespace: &str) -> u32 {
        self.of(namespace).last_complete_list
    }

    /// Returns the number of the last complete list of the newest state that covered this namespace.
    pub(super) fn newest_list_in(&self, namespace: &str) -> u32 {
        self.of(namespace).newest
    }

    fn of(&self, namespace: &str) -> &NamespaceRevision {
        self.parts.get(namespace).unwrap_or(&self.whole)
    }

    fn of_mut(&mut self, part: &str) -> &mut NamespaceRevision {
        self.parts.get_mut(part).unwrap_or(&mut self.whole)
    }

    /// Adds a namespace with its own list. It starts at the revision of the whole store if that contained the namespace.
    pub(super) fn add_namespace(&mut self, namespace: &str, was_in_whole: bool) {
        let revision = if was_in_whole {
            self.whole.revision.clone()
        } else {
            String::new()
        };
        let reach = NamespaceRevision {
            revision,
            ..NamespaceRevision::default()
        };
        self.parts.entry(namespace.to_owned()).or_insert(reach);
    }

    /// Removes a namespace that no longer has its own list.
    pub(super) fn remove_namespace(&mut self, namespace: &str) {
        self.parts.remove(namespace);
    }

    /// Begins a list of a namespace with its own list; an empty name means all namespaces.
    pub(super) fn begin(&mut self, part: &str) {
        self.lists += 1;
        let number = self.lists;
        self.of_mut(part).begun = number;
    }

    /// Completes the list that began last.
    pub(super) fn end(&mut self, part: &str, consistency: ReadConsistency) {
        let reach = self.of_mut(part);
        reach.last_complete_list = reach.begun;
        if consistency == ReadConsistency::Quorum {
            reach.newest = reach.begun;
        }
    }

    /// Advances to a revision, and backwards only with a list of the newest state. Returns true if that is a change. If two
    /// revisions cannot be compared, the later arrival counts.
    pub(super) fn advance(&mut self, part: &str, revision: &str, consistency: ReadConsistency) -> bool {
        let reach = self.of_mut(part);
        let is_older = match consistency {
            ReadConsistency::Watch => compare(revision, &reach.revision).is_some_and(Ordering::is_le),
            ReadConsistency::Quorum => revision == reach.revision,
        };
        let is_change = !is_older && !matches!(revision, "" | "0");
        if is_change {
            reach.revision.clear();
            reach.revision.push_str(revision);
        }
        is_change
    }

    /// Resets all revisions.
    pub(super) fn clear(&mut self) {
        self.whole.revision.clear();
        self.parts.values_mut().for_each(|part| part.revision.clear());
    }
}
