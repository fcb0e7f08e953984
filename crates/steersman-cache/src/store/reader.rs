// SPDX-License-Identifier: Apache-2.0
//! Reads from a store.

use std::{cmp::Ordering, sync::Arc};

use serde::de::DeserializeOwned;
use steersman_core::ObjectKey;

use super::{Inner, Query, ShownWrites, State, Store};
use crate::{
    DecodeError, Index, IndexConflict, Object, Revision,
    index::{ErasedIndex, IndexValue},
    overlay::OverlayEntries,
    revision::compare,
};

impl Store {
    /// Gets one object. Pass an empty namespace for a cluster-scoped object.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.inner.read();
        match self.layer() {
            Some(layer) => layer.get(&state, namespace, name),
            None => state.get(namespace, name).cloned(),
        }
    }

    /// Gets one object by its key.
    #[must_use]
    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.get(key.namespace(), key.name())
    }

    /// Gets one object as a `K`. Does not decode if the store keeps the value or a caller holds it.
    ///
    /// # Errors
    /// If the object exists and is no `K`.
    pub fn get_as<K>(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, DecodeError>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        if self.layer().is_none() {
            let state = self.inner.read();
            if let Some(value) = state.get_value(namespace, name) {
                return Ok(Some(value));
            }
        }
        let object = self.get(namespace, name);
        object.map(|object| object.decoded()).transpose()
    }

    /// Lists the objects that a query selects.
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Arc<Object>> {
        match self.layer() {
            Some(layer) => self.list_under(layer, query),
            None => self.inner.list(query),
        }
    }

    /// Lists the objects that a query selects, as `K`s. Each object is decoded when the iterator reaches it, without a lock. An
    /// object that is no `K` is an error in its place, so one bad object does not hide the others.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use k8s_openapi::api::core::v1::Pod;
    /// use steersman_cache::{Query, StoreOptions, store};
    ///
    /// let (_writer, store) = store(StoreOptions::new());
    /// // All objects, or an error:
    /// let pods: Vec<Arc<Pod>> = store.list_as(&Query::new()).collect::<Result<_, _>>()?;
    /// // Good objects and errors, separately:
    /// let (fine, bad): (Vec<_>, Vec<_>) = store.list_as::<Pod>(&Query::new()).partition(Result::is_ok);
    /// # Ok::<(), steersman_cache::DecodeError>(())
    /// ```
    pub fn list_as<K>(
        &self,
        query: &Query,
    ) -> impl ExactSizeIterator<Item = Result<Arc<K>, DecodeError>> + use<K>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        let found = if self.is_simple(query) {
            self.inner.prepare(query);
            let (state, mut found) = (self.inner.read(), Vec::new());
            state.visit(query, |slot, object| {
                found.push(state.value(slot).ok_or_else(|| Arc::clone(object)));
            });
            found
        } else {
            self.list(query).into_iter().map(Err).collect()
        };
        let value_of = |found: Result<Arc<K>, Arc<Object>>| found.or_else(|object| object.decoded());
        found.into_iter().map(value_of)
    }

    /// Lists the keys of the objects that a query selects.
    #[must_use]
    pub fn keys(&self, query: &Query) -> Vec<ObjectKey> {
        let mut keys = Vec::new();
        self.for_each(query, |object| keys.push(object.key()));
        keys
    }

    /// Calls `show` for each object that a query selects, without building a list. `show` runs under the lock: it must be quick,
    /// and must not read this store.
    pub fn for_each(&self, query: &Query, mut show: impl FnMut(&Arc<Object>)) {
        if !self.is_simple(query) {
            return self.list(query).iter().for_each(show);
        }
        self.inner.prepare(query);
        self.inner.read().visit(query, |_, object| show(object));
    }

    /// Returns the number of objects, without the overlay.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    /// Returns true if the store has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes of JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.read().bytes()
    }

    /// Returns the number of these bytes whose objects are also kept decoded.
    #[must_use]
    pub fn decoded_bytes(&self) -> usize {
        self.inner.read().decoded_bytes() + self.inner.sharing.usage().held_bytes
    }

    /// Returns the number of failures to decode an object, on arrival or on read, and of panics in functions over an object.
    #[must_use]
    pub fn decode_failures(&self) -> u64 {
        self.inner.sharing.usage().failures
    }

    /// Returns the revision up to which all changes are stored. Empty before the first list.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(self.inner.read().revision())
    }

    /// Adds an index. Adding it again does nothing.
    ///
    /// On a running store the index function runs over all objects, without the lock. The index is complete before it is used.
    ///
    /// # Errors
    /// If the store has a different index of the same name.
    pub fn add_index<V: IndexValue>(&self, index: &Index<V>) -> Result<(), IndexConflict> {
        if self.inner.read().has_index(index)? {
            return Ok(());
        }
        let objects: Vec<(u32, Arc<Object>)> = {
            let state = self.inner.read();
            state
                .objects()
                .map(|(slot, object)| (slot, Arc::clone(object)))
                .collect()
        };
        let values: Vec<Vec<V>> = objects.iter().map(|(_, object)| index.values(object)).collect();

        let mut state = self.inner.write();
        state.indexes.forget_unwanted();
        // Another thread can have added it meanwhile.
        if state.has_index(index)? {
            return Ok(());
        }
        let mut maintained = index.maintained(state.hasher());
        let mut known = objects.iter().zip(values).peekable();
        // Objects that changed since are computed now; both sides are in slot order.
        for (slot, object) in state.objects() {
            while known.next_if(|((before, _), _)| *before < slot).is_some() {}
            let same = known.next_if(|((before, was), _)| *before == slot && Arc::ptr_eq(was, object));
            let values = same.map_or_else(|| index.values(object), |(_, values)| values);
            maintained.set(slot, Box::new(values));
        }
        state.indexes.add(Box::new(maintained));
        Ok(())
    }

    /// Waits until all changes of a namespace up to this revision are stored; an empty name means all namespaces. A revision
    /// that cannot be compared is reached only while it is the newest.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn reached(&self, namespace: &str, revision: &Revision) {
        // Subscribes first: progress after the check below is notified.
        let mut progress = self.inner.progress.subscribe();
        let is_reached = |state: &State| {
            compare(state.revision_in(namespace), revision.as_str()).is_some_and(Ordering::is_ge)
        };
        while !self.look(is_reached) {
            if progress.changed().await.is_err() {
                // The sender lives as long as `self`.
                return;
            }
        }
    }

    pub(crate) fn with_layer(&self, layer: &Arc<OverlayEntries>) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            writes: ShownWrites::Of(Arc::clone(layer)),
        }
    }

    /// Returns a reader that also sees the writes of the cache, from the first write on.
    pub(crate) fn with_writes(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            writes: ShownWrites::OfCache,
        }
    }

    /// Returns the overlay of the cache. Creates it if this is the first write.
    pub(crate) fn written(&self, create: impl FnOnce() -> OverlayEntries) -> &Arc<OverlayEntries> {
        self.inner.written.get_or_init(|| {
            let layer = Arc::new(create());
            self.tell(&layer);
            layer
        })
    }

    /// Notifies an overlay of added and removed objects from now on.
    pub(crate) fn tell(&self, layer: &Arc<OverlayEntries>) {
        self.inner.write().add_layer(layer);
    }

    /// Returns true if the transform would keep the object.
    pub(crate) fn admits(&self, object: &Object) -> bool {
        self.inner.admits(object)
    }

    /// Returns the object in the form in which the store would keep it.
    pub(crate) fn shape(&self, object: impl Into<Arc<Object>>) -> Arc<Object> {
        self.inner.shape(object.into())
    }

    /// Calls `look` with the state of the store itself, without the overlay, under the lock.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.read())
    }

    /// Returns true if the store answers a query without an overlay and without a user's function.
    fn is_simple(&self, query: &Query) -> bool {
        self.layer().is_none() && query.terms().is_empty()
    }

    fn layer(&self) -> Option<&Arc<OverlayEntries>> {
        let layer = match &self.writes {
            ShownWrites::None => None,
            ShownWrites::OfCache => self.inner.written.get(),
            ShownWrites::Of(layer) => Some(layer),
        };
        layer.filter(|layer| !layer.is_empty())
    }

    fn list_under(&self, layer: &OverlayEntries, query: &Query) -> Vec<Arc<Object>> {
        self.inner.prepare(query);
        // Both under one lock, so that the overlay covers no newer object.
        let (snapshot, selected) = self.look(|state| {
            let snapshot = layer.snapshot(state);
            let selected = state.select(&query.with_room(snapshot.len()));
            (snapshot, selected)
        });
        let mut objects = selected.finish(query);
        snapshot.merge_into(&mut objects, query);
        objects.truncate(query.limited());
        objects
    }
}

impl Inner {
    fn list(&self, query: &Query) -> Vec<Arc<Object>> {
        self.prepare(query);
        let selected = self.read().select(query);
        let mut objects = selected.finish(query);
        objects.truncate(query.limited());
        objects
    }

    /// Creates the indexes that speed up a query.
    fn prepare(&self, query: &Query) {
        if self.read().lacks_index_for(query) {
            self.write().build_for(query);
        }
    }
}
