// SPDX-License-Identifier: Apache-2.0
//! What can be read from a store.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use steersman_core::ObjectKey;

use super::{Inner, Query, State, Store};
use crate::{
    DecodeError, Index, IndexConflict, Object, Revision,
    index::{AnyKept, IndexValue},
    overlay::Layer,
};

impl Store {
    /// One object; the namespace is empty for a cluster-scoped one.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.inner.read();
        match self.layer() {
            Some(layer) => layer.get(&state, namespace, name),
            None => state.get(namespace, name).cloned(),
        }
    }

    /// One object by its key.
    #[must_use]
    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.get(key.namespace(), key.name())
    }

    /// One object as a `K`. It is not decoded if the store keeps it so or somebody holds it.
    ///
    /// # Errors
    /// When it is there and is no `K`.
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

    /// The objects that a query wants.
    #[must_use]
    pub fn list(&self, query: &Query) -> Vec<Arc<Object>> {
        match self.layer() {
            Some(layer) => self.list_under(layer, query),
            None => self.inner.list(query),
        }
    }

    /// The objects that a query wants, as `K`s. Each is decoded when it is its turn, without a lock; one that is no `K`
    /// is an error in its place, so that one bad object neither hides nor spoils the others.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use k8s_openapi::api::core::v1::Pod;
    /// use steersman_cache::{Query, StoreOptions, store};
    ///
    /// let (_writer, store) = store(StoreOptions::new());
    /// // All or an error:
    /// let pods: Vec<Arc<Pod>> = store.list_as(&Query::new()).collect::<Result<_, _>>()?;
    /// // Those that are fine, and the others named:
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

    /// The keys of the objects that a query wants.
    #[must_use]
    pub fn keys(&self, query: &Query) -> Vec<ObjectKey> {
        let mut keys = Vec::new();
        self.for_each(query, |object| keys.push(object.key()));
        keys
    }

    /// Shows each object that a query wants, without making a list of them. `show` runs under the lock: it must be
    /// quick, and must not ask this store.
    pub fn for_each(&self, query: &Query, mut show: impl FnMut(&Arc<Object>)) {
        if !self.is_simple(query) {
            return self.list(query).iter().for_each(show);
        }
        self.inner.prepare(query);
        self.inner.read().visit(query, |_, object| show(object));
    }

    /// How many objects there are, without what was only written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes of JSON there are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.read().bytes()
    }

    /// How many of the bytes are of objects that are kept decoded as well.
    #[must_use]
    pub fn decoded_bytes(&self) -> usize {
        self.inner.read().decoded_bytes() + self.inner.sharing.usage().held_bytes
    }

    /// How often an object could not be decoded, when it came or when it was read, or a function panicked over it.
    #[must_use]
    pub fn decode_failures(&self) -> u64 {
        self.inner.sharing.usage().failures
    }

    /// How far the store has got: all changes up to here are in it. Empty before the first list.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::new(self.inner.read().revision())
    }

    /// Keeps an index from now on. Adding it again does nothing.
    ///
    /// On a running store its function runs on all objects, without the lock; it is then complete before it is used.
    ///
    /// # Errors
    /// When there is another one of the same name.
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
        // Somebody else may have been quicker.
        if state.has_index(index)? {
            return Ok(());
        }
        let mut kept = index.kept(state.hasher());
        let mut known = objects.iter().zip(values).peekable();
        // What changed since is computed now; both sides are in the order of slots.
        for (slot, object) in state.objects() {
            while known.next_if(|((before, _), _)| *before < slot).is_some() {}
            let same = known.next_if(|((before, was), _)| *before == slot && Arc::ptr_eq(was, object));
            let values = same.map_or_else(|| index.values(object), |(_, values)| values);
            kept.set(slot, Box::new(values));
        }
        state.indexes.add(Box::new(kept));
        Ok(())
    }

    pub(crate) fn with_layer(&self, layer: &Arc<Layer>) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            layer: Some(Arc::clone(layer)),
        }
    }

    /// Tells an overlay from now on what comes and goes.
    pub(crate) fn tell(&self, layer: &Arc<Layer>) {
        self.inner.write().add_layer(layer);
    }

    /// Whether the object would be kept at all.
    pub(crate) fn admits(&self, object: &Object) -> bool {
        self.inner.admits(object)
    }

    /// The object as it would be kept.
    pub(crate) fn shape(&self, object: impl Into<Arc<Object>>) -> Arc<Object> {
        self.inner.shape(object.into())
    }

    /// Shows what the store itself holds, for those who compare it with something of theirs.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.inner.read())
    }

    /// Whether what the store itself holds answers a query, and no function of a user runs for it.
    fn is_simple(&self, query: &Query) -> bool {
        self.layer().is_none() && query.terms().is_empty()
    }

    fn layer(&self) -> Option<&Arc<Layer>> {
        self.layer.as_ref().filter(|layer| !layer.is_empty())
    }

    fn list_under(&self, layer: &Layer, query: &Query) -> Vec<Arc<Object>> {
        self.inner.prepare(query);
        // Both at one moment, so that nothing newer is covered.
        let (laid, selected) = self.look(|state| {
            let laid = layer.laid(state);
            let selected = state.select(&query.with_room(laid.len()));
            (laid, selected)
        });
        let mut objects = selected.finish(query);
        laid.cover(&mut objects, query);
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

    /// Makes the indexes that a query would like.
    fn prepare(&self, query: &Query) {
        if self.read().lacks_index_for(query) {
            self.write().build_for(query);
        }
    }
}
