// SPDX-License-Identifier: Apache-2.0
//! The registry of served resources.

use std::{collections::HashMap, sync::Arc};

use super::Resource;

/// All kinds, built-in kinds first.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    resources: Vec<Arc<Resource>>,
    /// Kinds by group and plural.
    by_name: HashMap<String, HashMap<String, Arc<Resource>>>,
    /// Increases whenever the set of served kinds changes.
    generation: u64,
}

impl Registry {
    pub(crate) fn new(builtin: Vec<Resource>) -> Self {
        let mut registry = Self::default();
        builtin.into_iter().for_each(|resource| registry.insert(resource));
        registry
    }

    /// Adds or replaces a kind.
    pub(crate) fn insert(&mut self, resource: Resource) {
        let resource = Arc::new(resource);
        self.generation += 1;
        let group = self.by_name.entry(resource.group.clone()).or_default();
        match group.insert(resource.plural.clone(), Arc::clone(&resource)) {
            Some(old) => {
                if let Some(place) = self.resources.iter_mut().find(|known| Arc::ptr_eq(known, &old)) {
                    *place = resource;
                }
            }
            None => self.resources.push(resource),
        }
    }

    /// Removes a kind; returns true if it existed.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) -> bool {
        self.generation += 1;
        self.resources.retain(|resource| !resource.is(group, plural));
        self.by_name
            .get_mut(group)
            .and_then(|group| group.remove(plural))
            .is_some()
    }

    pub(crate) fn find(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_name.get(group)?.get(plural)
    }

    pub(crate) fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.resources
            .iter()
            .find(|resource| resource.group == group && resource.kind == kind)
    }

    pub(crate) fn all(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Returns true if a built-in kind belongs to this group.
    pub(crate) fn has_builtin_group(&self, group: &str) -> bool {
        self.resources
            .iter()
            .any(|resource| resource.custom.is_none() && resource.group == group)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}
