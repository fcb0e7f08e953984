// SPDX-License-Identifier: Apache-2.0
//! All indexes of a store: over namespaces and labels, which queries create, and indexes added by users.

use std::{any::Any, fmt, sync::Arc};

use foldhash::fast::FixedState;

use super::postings::Postings;
use crate::{
    Object,
    index::{Compute, ErasedIndex},
};

/// Maximum number of label indexes. Queries for further labels scan all objects.
const LABELS_MAX: usize = 16;

pub(crate) struct Indexes {
    hasher: FixedState,
    namespaces: Option<Postings<Box<str>>>,
    labels: Vec<(Box<str>, Postings<Box<str>>)>,
    maintained: Vec<Box<dyn ErasedIndex>>,
    /// The functions of `maintained`, in the same order, to run without a lock.
    functions: Functions,
}

/// A snapshot of the functions of all indexes.
pub(super) type Functions = Arc<[Arc<dyn Compute>]>;

/// The results of all functions for one object.
pub(super) type Values = Vec<Box<dyn Any + Send>>;

impl Indexes {
    pub(super) fn new(hasher: FixedState) -> Self {
        Self {
            hasher,
            namespaces: None,
            labels: Vec::new(),
            maintained: Vec::new(),
            functions: Arc::new([]),
        }
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(super) fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    pub(super) fn maintained(&self) -> &[Box<dyn ErasedIndex>] {
        &self.maintained
    }

    pub(super) fn namespaces(&self) -> Option<&Postings<Box<str>>> {
        self.namespaces.as_ref()
    }

    pub(super) fn label(&self, key: &str) -> Option<&Postings<Box<str>>> {
        let found = self.labels.iter().find(|(found, _)| **found == *key)?;
        Some(&found.1)
    }

    /// Returns true if a query for this label should create an index.
    pub(super) fn wants_label(&self, key: &str) -> bool {
        self.labels.len() < LABELS_MAX && self.label(key).is_none()
    }

    pub(super) fn add_namespaces<'a>(&mut self, objects: impl Iterator<Item = (u32, &'a Arc<Object>)>) {
        let mut postings = Postings::new(self.hasher.clone());
        for (slot, object) in objects {
            postings.set::<_, str>(slot, [object.namespace()]);
        }
        self.namespaces = Some(postings);
    }

    pub(super) fn add_label<'a>(&mut self, key: &str, objects: impl Iterator<Item = (u32, &'a Arc<Object>)>) {
        let mut postings = Postings::new(self.hasher.clone());
        for (slot, object) in objects {
            postings.set::<_, str>(slot, object.label(key));
        }
        self.labels.push((key.into(), postings));
    }

    pub(super) fn add(&mut self, maintained: Box<dyn ErasedIndex>) {
        self.maintained.push(maintained);
        self.list_functions();
    }

    /// Records the object of a slot, with the values that `functions` returned for it.
    pub(super) fn set(
        &mut self,
        slot: u32,
        object: &Arc<Object>,
        functions: &Functions,
        values: Option<Values>,
    ) {
        if let Some(namespaces) = &mut self.namespaces {
            namespaces.set::<_, str>(slot, [object.namespace()]);
        }
        for (key, postings) in &mut self.labels {
            postings.set::<_, str>(slot, object.label(key));
        }
        if self.maintained.is_empty() {
            return;
        }
        // An index added a moment ago is computed here. That is rare, and the lock keeps the index complete.
        let values = values
            .filter(|_| Arc::ptr_eq(functions, &self.functions))
            .unwrap_or_else(|| compute(&self.functions, object));
        for (maintained, values) in self.maintained.iter_mut().zip(values) {
            maintained.set(slot, values);
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(namespaces) = &mut self.namespaces {
            namespaces.remove(slot);
        }
        for (_, postings) in &mut self.labels {
            postings.remove(slot);
        }
        for maintained in &mut self.maintained {
            maintained.remove(slot);
        }
    }

    pub(super) fn clear(&mut self) {
        for postings in self
            .namespaces
            .iter_mut()
            .chain(self.labels.iter_mut().map(|(_, postings)| postings))
        {
            postings.clear();
        }
        for maintained in &mut self.maintained {
            maintained.clear();
        }
    }

    /// Drops indexes whose handles are all dropped.
    pub(super) fn forget_unwanted(&mut self) {
        if self.maintained.iter().all(|maintained| maintained.is_wanted()) {
            return;
        }
        self.maintained.retain(|maintained| maintained.is_wanted());
        self.list_functions();
    }

    fn list_functions(&mut self) {
        self.functions = self
            .maintained
            .iter()
            .map(|maintained| maintained.compute())
            .collect();
    }
}

pub(super) fn compute(functions: &Functions, object: &Arc<Object>) -> Values {
    functions
        .iter()
        .map(|function| function.compute(object))
        .collect()
}

impl fmt::Debug for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.maintained.iter().map(|maintained| maintained.name()))
            .finish()
    }
}
