// SPDX-License-Identifier: Apache-2.0
//! Query evaluation: uses the smallest lookup, and checks its results for the other conditions.

use std::sync::Arc;

use super::{
    query::{Query, Sought},
    state::State,
};
use crate::{
    Object,
    index::{ErasedIndex, Term},
};

/// The objects that a query selects, as far as the store's indexes decide it.
pub(super) struct Selected {
    objects: Vec<Arc<Object>>,
    /// True if terms are still to be checked, because the store does not keep their index.
    is_partial: bool,
}

impl Selected {
    /// Checks the remaining terms. The result can exceed the limit. This runs users' functions, so not under a lock.
    pub(super) fn finish(mut self, query: &Query) -> Vec<Arc<Object>> {
        if self.is_partial {
            let fits = |object: &Arc<Object>| query.terms().iter().all(|term| term.matches(object));
            self.objects.retain(fits);
        }
        self.objects
    }
}

impl State {
    /// Returns true if [`build_for`](Self::build_for) would speed up the query.
    pub(super) fn lacks_index_for(&self, query: &Query) -> bool {
        (query.wanted_namespace().is_some() && self.indexes.namespaces().is_none())
            || query
                .wanted_labels()
                .any(|(key, _)| self.indexes.wants_label(key))
    }

    pub(super) fn build_for(&mut self, query: &Query) {
        if query.wanted_namespace().is_some() && self.indexes.namespaces().is_none() {
            self.index_namespaces();
        }
        for (key, _) in query.wanted_labels() {
            if self.indexes.wants_label(key) {
                self.index_label(key);
            }
        }
    }

    pub(super) fn select(&self, query: &Query) -> Selected {
        let mut objects = Vec::new();
        let is_partial = self.visit(query, |_, object| objects.push(Arc::clone(object)));
        Selected { objects, is_partial }
    }

    /// Calls `show` for the selected objects in slot order. Returns true if terms are still to be checked; then the limit is not
    /// applied.
    pub(super) fn visit(&self, query: &Query, mut show: impl FnMut(u32, &Arc<Object>)) -> bool {
        let terms = self.terms(query);
        let is_partial = terms.len() < query.terms().len();
        let limit = if is_partial { usize::MAX } else { query.limited() };
        let is_wanted = |slot: u32, object: &Object| {
            query.matches_header(object) && terms.iter().all(|(maintained, term)| term.has(*maintained, slot))
        };
        match self.smallest(query, &terms) {
            Some(mut slots) => {
                // The order of a list must not depend on the lookup.
                slots.sort_unstable();
                let found = slots
                    .into_iter()
                    .filter_map(|slot| Some((slot, self.object(slot)?)));
                let wanted = found.filter(|(slot, object)| is_wanted(*slot, object));
                wanted.take(limit).for_each(|(slot, object)| show(slot, object));
            }
            None => {
                let wanted = self.objects().filter(|(slot, object)| is_wanted(*slot, object));
                wanted.take(limit).for_each(|(slot, object)| show(slot, object));
            }
        }
        is_partial
    }

    /// Returns the terms whose index is kept.
    fn terms<'a>(&'a self, query: &'a Query) -> Vec<(&'a dyn ErasedIndex, &'a dyn Term)> {
        let kept_for = |term: &'a Arc<dyn Term>| {
            let mut maintained = self.indexes.maintained().iter().map(AsRef::as_ref);
            let found = maintained.find(|maintained| term.count(*maintained).is_some())?;
            Some((found, term.as_ref()))
        };
        query.terms().iter().filter_map(kept_for).collect()
    }

    /// Returns the slots of the smallest lookup, if there is any lookup.
    fn smallest(&self, query: &Query, terms: &[(&dyn ErasedIndex, &dyn Term)]) -> Option<Vec<u32>> {
        let namespace = query
            .wanted_namespace()
            .and_then(|namespace| Some((self.indexes.namespaces()?, Sought::One(namespace))));
        let labels = query
            .wanted_labels()
            .filter_map(|(key, sought)| Some((self.indexes.label(key)?, sought)));
        let of_header = namespace
            .into_iter()
            .chain(labels)
            .map(|(postings, sought)| (sought.count(postings), postings, sought))
            .min_by_key(|(count, ..)| *count);
        let of_terms = terms
            .iter()
            .filter_map(|(maintained, term)| Some((term.count(*maintained)?, *maintained, *term)))
            .min_by_key(|(count, ..)| *count);
        match (of_header, of_terms) {
            (Some((fewer, postings, sought)), terms)
                if terms.as_ref().is_none_or(|(count, ..)| fewer <= *count) =>
            {
                Some(sought.slots(postings))
            }
            (_, Some((_, maintained, term))) => Some(term.slots(maintained).collect()),
            _ => None,
        }
    }
}
