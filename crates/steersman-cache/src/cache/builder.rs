// SPDX-License-Identifier: Apache-2.0
//! Builds a cache.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use steersman_core::{Mutex, Presence};
use tokio::sync::watch;

use super::{Cache, Inner};
use crate::{
    Index, IndexConflict, IndexValue, InformerContext, InformerOptions, Resource, Scope, Store, StoreOptions,
    presence_source::PresenceSource, store,
};

/// Delay before an unused informer ends. Default of [`CacheBuilder::linger`].
const LINGER: Duration = Duration::from_secs(5);

/// Builds a cache; from [`Cache::builder`].
#[derive(Debug)]
#[must_use]
pub struct CacheBuilder {
    context: InformerContext,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    indexes: Indexes,
    linger: Duration,
}

/// Adds an index to a store.
type AddIndex = Box<dyn Fn(&Store) -> Result<(), IndexConflict> + Send + Sync>;

/// The indexes of each kind, added to every store of it.
#[derive(Default)]
pub(super) struct Indexes(HashMap<Resource, Vec<AddIndex>>);

impl CacheBuilder {
    pub(super) fn new(context: InformerContext) -> Self {
        Self {
            context,
            defaults: Default::default(),
            kinds: HashMap::new(),
            indexes: Indexes::default(),
            linger: LINGER,
        }
    }

    /// Sets scope and options of every kind without settings from [`kind`](Self::kind). Default: all objects, default options.
    ///
    /// The namespaces of the defaults do not apply to cluster-scoped kinds: of these, the cache keeps all objects that the
    /// selectors match. A type knows whether its kind is cluster-scoped, and so does a resource from discovery. For a resource
    /// made from [its names](Resource::new), [set the scope explicitly](Resource::namespaced).
    pub fn defaults(mut self, scope: Scope, options: InformerOptions) -> Self {
        self.defaults = (scope, options);
        self
    }

    /// Sets scope and options of one kind, instead of the defaults. Namespaces for a cluster-scoped kind are rejected; see
    /// [`Scope::namespace`].
    pub fn kind(mut self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.kinds.insert(resource, (scope, options));
        self
    }

    /// Keeps an index with every informer of a kind, from its first object on.
    ///
    /// # Errors
    /// If the kind already has a different index of this name.
    pub fn index<V: IndexValue>(
        mut self,
        resource: Resource,
        index: &Index<V>,
    ) -> Result<Self, IndexConflict> {
        let index = index.clone();
        let added = self.indexes.0.entry(resource).or_default();
        added.push(Box::new(move |store| store.add_index(&index)));
        let (_writer, probe) = store(StoreOptions::new());
        added.iter().try_for_each(|add| add(&probe))?;
        Ok(self)
    }

    /// Sets how long an unused informer is kept. Default: 5 s.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets a function that knows, without a request, whether the server has a kind, and a channel that reports changes.
    ///
    /// Reads of an absent kind then send no request. Informers of an absent kind send none after the server has rejected them,
    /// until the kind is installed. Default: unknown, so the server is asked.
    pub fn presence(
        mut self,
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Self {
        self.context = self.context.knowing(PresenceSource::new(presence, changes));
        self
    }

    /// Builds the cache. It sends no request until a caller asks.
    #[must_use]
    pub fn build(self) -> Cache {
        let Self {
            context,
            defaults,
            kinds,
            indexes,
            linger,
        } = self;
        Cache(Arc::new(Inner {
            context,
            defaults,
            kinds,
            indexes,
            linger,
            namespaces: Mutex::default(),
            entries: Mutex::default(),
            changes: watch::Sender::default(),
        }))
    }
}

impl Indexes {
    pub(super) fn add_to(&self, resource: &Resource, store: &Store) {
        for add in self.0.get(resource).into_iter().flatten() {
            let added = add(store);
            debug_assert!(added.is_ok(), "the builder rejects conflicting indexes");
        }
    }
}

impl fmt::Debug for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(resource, added)| (resource, added.len())))
            .finish()
    }
}
