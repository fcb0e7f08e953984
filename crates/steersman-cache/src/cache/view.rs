// SPDX-License-Identifier: Apache-2.0
//! The objects that a cached read sees: those of one scope, or of all scopes in which its reader reads a resource.

use std::{cmp::Ordering, collections::HashSet, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{DecodeError, Object, Query, Scope, Store, revision::compare};

/// The objects that a cached read sees; from [`Reader::view`](crate::Reader::view).
///
/// If a resource is read in several scopes, each scope has its own watch, and one watch can lag behind another. Then a read
/// returns the newest state of an object in any of the scopes. If one watch reports that an object was deleted, or left its
/// scope, a read does not return the object. So a read is never older than the event that triggered it, whichever watch
/// delivered the event.
///
/// # Limits
/// A deletion counts only for its own scope if that scope has a field selector on fields other than name and namespace. If the
/// resource versions of a server cannot be compared, the first scope that contains an object decides.
#[derive(Debug)]
pub struct View(Stores);

#[derive(Debug)]
enum Stores {
    One(Store),
    Several(Vec<(Scope, Store)>),
}

impl View {
    pub(super) fn of(store: Store) -> Self {
        Self(Stores::One(store))
    }

    /// Returns the union of these scopes.
    pub(super) fn union(mut stores: Vec<(Scope, Store)>) -> Option<Self> {
        match stores.len() {
            0 => None,
            1 => stores.pop().map(|(_, store)| Self::of(store)),
            _ => Some(Self(Stores::Several(stores))),
        }
    }

    /// Gets one object. Pass an empty namespace for a cluster-scoped object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        match &self.0 {
            Stores::One(store) => store.get(namespace, name),
            Stores::Several(stores) => newest(stores, namespace, name),
        }
    }

    /// Gets one object as a `K`.
    ///
    /// # Errors
    /// If the object exists and does not match `K`.
    pub fn get_as<K>(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, DecodeError>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        match &self.0 {
            Stores::One(store) => store.get_as(namespace, name),
            Stores::Several(stores) => newest(stores, namespace, name)
                .map(|object| object.decoded())
                .transpose(),
        }
    }

    /// Lists the objects that a query selects.
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Arc<Object>> {
        match &self.0 {
            Stores::One(store) => store.list(query),
            Stores::Several(stores) => all_newest(stores, query),
        }
    }

    /// Lists the objects that a query selects, as `K`s.
    ///
    /// # Errors
    /// If one of them does not match `K`.
    pub fn list_as<K>(&self, query: &Query) -> Result<Vec<Arc<K>>, DecodeError>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        match &self.0 {
            Stores::One(store) => store.list_as(query).collect(),
            Stores::Several(stores) => all_newest(stores, query)
                .iter()
                .map(|object| object.decoded())
                .collect(),
        }
    }
}

/// Returns the newest state of an object, unless one of the stores knows that the object was deleted or left its scope since.
fn newest(stores: &[(Scope, Store)], namespace: &str, name: &str) -> Option<Arc<Object>> {
    let found = stores.iter().filter_map(|(_, store)| store.get(namespace, name));
    let newest =
        found.reduce(
            |newest, other| match compare(other.resource_version(), newest.resource_version()) {
                Some(Ordering::Greater) => other,
                _ => newest,
            },
        )?;
    let is_gone = stores
        .iter()
        .any(|(scope, store)| has_lost(scope, store, &newest));
    (!is_gone).then_some(newest)
}

/// Returns true if a store should contain an object by scope and revision, but does not.
fn has_lost(scope: &Scope, store: &Store, object: &Object) -> bool {
    if scope.holds(object) != Some(true) {
        return false;
    }
    // Read the revision first: an object that arrives in between is found.
    let has_reached = store.look(|state| {
        let reached = state.revision_in(object.namespace());
        compare(reached, object.resource_version()).is_some_and(Ordering::is_ge)
    });
    has_reached && store.get(object.namespace(), object.name()).is_none()
}

/// Lists each object that a query selects in one of the stores, in its newest state, if the query selects that state.
fn all_newest(stores: &[(Scope, Store)], query: &Query) -> Vec<Arc<Object>> {
    let unlimited = query.with_room(usize::MAX);
    let (mut seen, mut objects) = (HashSet::new(), Vec::new());
    for (_, store) in stores {
        for found in store.list(&unlimited) {
            if !seen.insert(found.key()) {
                continue;
            }
            let newest = newest(stores, found.namespace(), found.name());
            objects.extend(newest.filter(|object| query.matches(object)));
        }
    }
    objects.truncate(query.limited());
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoreOptions, StoreWriter, store};

    fn object(name: &str, revision: u32, tier: &str) -> Object {
        let json = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"{revision}","labels":{{"tier":"{tier}"}}}}}}"#
        );
        Object::from_slice(json.as_bytes()).unwrap()
    }

    /// A view of two scopes: all objects, and the objects of tier `front`.
    fn two() -> (View, [StoreWriter; 2]) {
        let (wide, all) = store(StoreOptions::new());
        let (narrow, front) = store(StoreOptions::new());
        let scopes = [(Scope::all(), all), (Scope::all().labels("tier=front"), front)];
        (View::union(scopes.into()).unwrap(), [wide, narrow])
    }

    fn revision(view: &View, name: &str) -> Option<String> {
        let found = view.get("n", name)?;
        Some(found.resource_version().to_owned())
    }

    fn names(view: &View, query: &Query) -> Vec<String> {
        let found = view.list(query);
        found.iter().map(|object| object.name().to_owned()).collect()
    }

    // D20
    #[test]
    fn reads_the_newest_state_of_several_scopes() {
        let (view, [mut wide, mut narrow]) = two();
        wide.apply(object("a", 1, "front"));
        wide.apply(object("b", 2, "back"));
        narrow.apply(object("a", 3, "front"));
        assert_eq!(revision(&view, "a").as_deref(), Some("3"));
        assert_eq!(revision(&view, "b").as_deref(), Some("2"));
        wide.apply(object("a", 4, "front"));
        assert_eq!(revision(&view, "a").as_deref(), Some("4"));
        assert_eq!(names(&view, &Query::new()), ["a", "b"]);
        assert_eq!(names(&view, &Query::new().limit(1)), ["a"]);
    }

    // D20
    #[test]
    fn a_deletion_in_one_of_several_scopes_hides_the_object() {
        let (view, [mut wide, mut narrow]) = two();
        wide.apply(object("a", 1, "front"));
        narrow.apply(object("a", 1, "front"));
        narrow.remove(&object("a", 5, "front"));
        narrow.advance_to("5");
        assert_eq!(revision(&view, "a"), None);
        assert!(names(&view, &Query::new()).is_empty());
        // The watch of the narrow scope has not received the next change yet.
        wide.apply(object("a", 6, "front"));
        assert_eq!(revision(&view, "a").as_deref(), Some("6"));
    }

    // D20
    #[test]
    fn a_list_hides_an_object_that_left_the_scope() {
        let (view, [mut wide, mut narrow]) = two();
        narrow.apply(object("a", 1, "front"));
        wide.apply(object("a", 2, "back"));
        assert!(names(&view, &Query::new().label("tier", "front")).is_empty());
        assert_eq!(names(&view, &Query::new().label("tier", "back")), ["a"]);
    }
}
