// SPDX-License-Identifier: Apache-2.0
//! Named, typed secondary indexes of a store.
//!
//! An [`Index`] defines how to compute values from an object. It is data, like the plan of a controller: a store maintains it
//! after it was [added](crate::Store::add_index), and a new store of a later run can use the same one.
//!
//! # Guarantees
//! 1. Values are computed once per change of an object, before readers see the change.
//! 2. An index that is added to a running store is complete before the first lookup uses it.
//! 3. Two indexes of one name in one store are the same index; otherwise adding the second returns an error.
//! 4. A lookup with an index that a store does not maintain returns the same objects, by a scan of all of them.
//! 5. A store maintains an index as long as a handle to it exists, and drops it with the next change after that.
//! 6. An object over which the function panics or returns an error has no values, is logged, and counts as a failure. Other
//!    objects are not affected.
//!
//! # Not promised
//! The function can run more than once for an object: a relist runs it on changed objects, and a reader runs it on its own
//! writes that the store has not received yet.

use std::{
    any::Any,
    fmt,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use foldhash::fast::FixedState;
use serde::de::DeserializeOwned;

use crate::{Object, store::postings::Postings};

/// A value that can be looked up.
pub trait IndexValue: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static {}

impl<V: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static> IndexValue for V {}

/// A named function from an object to values (as client-go's `IndexFunc`).
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use steersman_cache::{Index, Query, StoreOptions, store};
///
/// let by_node = Index::on("node", |pod: &Pod| pod.spec.as_ref()?.node_name.clone());
/// let by_owner = Index::on_header("owner", |object| object.owners().into_iter().map(|owner| owner.uid));
///
/// let (_writer, store) = store(StoreOptions::new());
/// store.add_index(&by_node)?;
/// store.add_index(&by_owner)?;
/// let pods = store.list(&Query::new().index(&by_node, "node-1").index(&by_owner, "4711"));
/// assert!(pods.is_empty());
/// # Ok::<(), steersman_cache::IndexConflict>(())
/// ```
pub struct Index<V> {
    definition: Arc<Definition<V>>,
}

struct Definition<V> {
    name: Box<str>,
    values: Box<Function<V>>,
}

type Function<V> = dyn Fn(&Arc<Object>) -> Vec<V> + Send + Sync;

impl<V> Definition<V> {
    fn values_of(&self, object: &Arc<Object>) -> Vec<V> {
        catch_unwind(AssertUnwindSafe(|| (self.values)(object))).unwrap_or_else(|_| {
            let (index, key) = (&self.name, object.key());
            tracing::error!(%index, %key, "index function panicked; lookups by this index do not find the object");
            object.failed();
            Vec::new()
        })
    }
}

/// The store has a different index of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store has another index `{name}`; clone that one, or choose another name")]
#[non_exhaustive]
pub struct IndexConflict {
    /// The name of both indexes.
    pub name: String,
}

impl<V: IndexValue> Index<V> {
    /// Creates an index on the header: key, labels, annotations, owner references.
    pub fn on_header<F, I>(name: &str, values: F) -> Self
    where
        F: Fn(&Object) -> I + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
    {
        Self::new(name, move |object| values(object).into_iter().collect())
    }

    /// Creates an index on the object as a `T`. If the store keeps objects as `T`, this costs nothing; any other type is decoded
    /// once per change. An object that is no `T` has no values and counts as a failure.
    pub fn on<T, F, I>(name: &str, values: F) -> Self
    where
        T: DeserializeOwned + Send + Sync + 'static,
        F: Fn(&T) -> I + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
    {
        Self::new(name, move |object| {
            let decoded = object.decoded::<T>();
            decoded.map_or_else(|_| Vec::new(), |value| values(&value).into_iter().collect())
        })
    }

    /// Like [`on`](Self::on), with a function that can fail. An object for which it fails is logged with the error, has no
    /// values and counts as a failure, once for each change of the object.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use steersman_cache::Index;
    ///
    /// let by_port = Index::try_on("port", |map: &ConfigMap| {
    ///     let port = map.data.as_ref().and_then(|data| data.get("port"));
    ///     port.map(|port| port.parse::<u16>()).transpose()
    /// });
    /// # let _: Index<u16> = by_port;
    /// ```
    pub fn try_on<T, F, I, E>(name: &str, values: F) -> Self
    where
        T: DeserializeOwned + Send + Sync + 'static,
        F: Fn(&T) -> Result<I, E> + Send + Sync + 'static,
        I: IntoIterator<Item = V>,
        E: fmt::Display,
    {
        let index: Box<str> = name.into();
        Self::new(name, move |object| {
            let Ok(value) = object.decoded::<T>() else {
                return Vec::new();
            };
            match values(&value) {
                Ok(values) => values.into_iter().collect(),
                Err(error) => {
                    let key = object.key();
                    tracing::warn!(%index, %key, %error, "index function failed; lookups by this index do not find the object");
                    object.failed();
                    Vec::new()
                }
            }
        })
    }

    fn new(name: &str, values: impl Fn(&Arc<Object>) -> Vec<V> + Send + Sync + 'static) -> Self {
        Self {
            definition: Arc::new(Definition {
                name: name.into(),
                values: Box::new(values),
            }),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.definition.name
    }

    /// Computes the values of one object.
    #[must_use]
    pub fn values(&self, object: &Arc<Object>) -> Vec<V> {
        self.definition.values_of(object)
    }

    /// Returns true if `maintained` belongs to this index.
    pub(crate) fn is_in(&self, maintained: &dyn ErasedIndex) -> bool {
        self.maintained_in(maintained).is_some()
    }

    fn maintained_in<'a>(&self, maintained: &'a dyn ErasedIndex) -> Option<&'a MaintainedIndex<V>> {
        let maintained = (maintained as &dyn Any).downcast_ref::<MaintainedIndex<V>>()?;
        Arc::ptr_eq(&maintained.definition, &self.definition).then_some(maintained)
    }

    pub(crate) fn maintained(&self, hasher: FixedState) -> MaintainedIndex<V> {
        MaintainedIndex {
            definition: Arc::clone(&self.definition),
            postings: Postings::new(hasher),
        }
    }
}

impl<V> Clone for Index<V> {
    fn clone(&self) -> Self {
        Self {
            definition: Arc::clone(&self.definition),
        }
    }
}

impl<V> fmt::Debug for Index<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Index").field(&self.definition.name).finish()
    }
}

/// A type-erased index function: from an object to a `Vec<V>`, without a lock.
pub(crate) trait Compute: Send + Sync {
    fn compute(&self, object: &Arc<Object>) -> Box<dyn Any + Send>;
}

impl<V: IndexValue> Compute for Definition<V> {
    fn compute(&self, object: &Arc<Object>) -> Box<dyn Any + Send> {
        Box::new(self.values_of(object))
    }
}

/// A type-erased index with the values of all objects of a store.
pub(crate) trait ErasedIndex: Any + Send + Sync {
    fn name(&self) -> &str;
    fn compute(&self) -> Arc<dyn Compute>;
    fn set(&mut self, slot: u32, values: Box<dyn Any + Send>);
    fn remove(&mut self, slot: u32);
    fn clear(&mut self);
    /// Returns true if the index is held outside the store.
    fn is_wanted(&self) -> bool;
}

/// An index with the values of all objects of a store.
pub(crate) struct MaintainedIndex<V> {
    definition: Arc<Definition<V>>,
    postings: Postings<V>,
}

impl<V: IndexValue> ErasedIndex for MaintainedIndex<V> {
    fn name(&self) -> &str {
        &self.definition.name
    }

    fn compute(&self) -> Arc<dyn Compute> {
        Arc::clone(&self.definition) as Arc<dyn Compute>
    }

    fn set(&mut self, slot: u32, values: Box<dyn Any + Send>) {
        let values = values.downcast::<Vec<V>>();
        self.postings.set::<V, V>(
            slot,
            *values.expect("an index receives only values that it computed"),
        );
    }

    fn remove(&mut self, slot: u32) {
        self.postings.remove(slot);
    }

    fn clear(&mut self) {
        self.postings.clear();
    }

    fn is_wanted(&self) -> bool {
        // The store itself holds two references: this one, and one in the list of functions.
        Arc::strong_count(&self.definition) > 2
    }
}

/// An index lookup in a query.
pub(crate) trait Term: fmt::Debug + Send + Sync {
    /// Returns the number of objects with the value, if `maintained` is the index of the query.
    fn count(&self, maintained: &dyn ErasedIndex) -> Option<usize>;
    /// Returns the slots with the value.
    fn slots<'a>(&'a self, maintained: &'a dyn ErasedIndex) -> Box<dyn Iterator<Item = u32> + 'a>;
    fn has(&self, maintained: &dyn ErasedIndex, slot: u32) -> bool;
    /// Returns true if an object, from any source, has the value.
    fn matches(&self, object: &Arc<Object>) -> bool;
}

#[derive(Debug)]
pub(crate) struct Equals<V> {
    pub(crate) index: Index<V>,
    pub(crate) value: V,
}

impl<V: IndexValue> Term for Equals<V> {
    fn count(&self, maintained: &dyn ErasedIndex) -> Option<usize> {
        Some(self.index.maintained_in(maintained)?.postings.count(&self.value))
    }

    fn slots<'a>(&'a self, maintained: &'a dyn ErasedIndex) -> Box<dyn Iterator<Item = u32> + 'a> {
        match self.index.maintained_in(maintained) {
            Some(maintained) => Box::new(maintained.postings.slots(&self.value)),
            None => Box::new(std::iter::empty()),
        }
    }

    fn has(&self, maintained: &dyn ErasedIndex, slot: u32) -> bool {
        self.index
            .maintained_in(maintained)
            .is_some_and(|maintained| maintained.postings.has(slot, &self.value))
    }

    fn matches(&self, object: &Arc<Object>) -> bool {
        self.index.values(object).contains(&self.value)
    }
}
