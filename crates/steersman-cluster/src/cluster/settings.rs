// SPDX-License-Identifier: Apache-2.0
//! What the cache of a cluster keeps, and how.

use std::{collections::HashSet, fmt, time::Duration};

use steersman_cache::{
    Cache, CacheBuilder, CacheMissPolicy, Index, IndexConflict, IndexValue, InformerContext, InformerOptions,
    Resource, Scope,
};
use steersman_core::Presence;
use tokio::sync::watch;

use crate::Kind;

/// What the cache of a cluster keeps, and how; for [`ClusterBuilder::cache`](crate::ClusterBuilder::cache).
#[derive(Default)]
#[must_use]
pub struct CacheSettings {
    settings: Vec<Setting>,
    pub(super) missing: CacheMissPolicy,
    pub(super) uncached: HashSet<Resource>,
}

type Setting = Box<dyn FnOnce(CacheBuilder) -> Result<CacheBuilder, IndexConflict> + Send>;

impl CacheSettings {
    /// What holds for every kind that nothing else is said about. Default: all objects, default options.
    ///
    /// Namespaces are not meant for kinds that are in none; see [`CacheBuilder::defaults`].
    pub fn defaults(self, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.defaults(scope, options)))
    }

    /// What holds for one kind, instead of the defaults. Namespaces for a kind that is in none are refused; see
    /// [`Scope::namespace`].
    pub fn kind<K: Kind>(self, scope: Scope, options: InformerOptions) -> Self {
        self.resource(Resource::of::<K>(), scope, options)
    }

    /// As [`kind`](Self::kind), for one that is known when the program runs.
    pub fn resource(self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.kind(resource, scope, options)))
    }

    /// Keeps an index with every informer of a kind. Two of one name are refused when the cluster is made.
    pub fn index<K: Kind, V: IndexValue>(self, index: &Index<V>) -> Self {
        let index = index.clone();
        self.with(move |cache| cache.index(Resource::of::<K>(), &index))
    }

    /// So long an informer is kept that nobody holds. Default: 5 s.
    pub fn linger(self, time: Duration) -> Self {
        self.with(move |cache| Ok(cache.linger(time)))
    }

    /// What a read does with a kind that has no informer yet. Default: it starts one.
    pub fn missing(mut self, missing: CacheMissPolicy) -> Self {
        self.missing = missing;
        self
    }

    /// Reads of this kind go to the server, whatever the cache has. Default: none do.
    pub fn uncached<K: Kind>(self) -> Self {
        self.uncached_resource(Resource::of::<K>())
    }

    /// As [`uncached`](Self::uncached), for a kind that is known when the program runs.
    pub fn uncached_resource(mut self, resource: Resource) -> Self {
        self.uncached.insert(resource);
        self
    }

    pub(super) fn build(
        self,
        surroundings: InformerContext,
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Result<Cache, IndexConflict> {
        let builder = Cache::builder(surroundings).presence(presence, changes);
        let builder = self
            .settings
            .into_iter()
            .try_fold(builder, |builder, set| set(builder))?;
        Ok(builder.build())
    }

    fn with(
        mut self,
        set: impl FnOnce(CacheBuilder) -> Result<CacheBuilder, IndexConflict> + Send + 'static,
    ) -> Self {
        self.settings.push(Box::new(set));
        self
    }
}

impl fmt::Debug for CacheSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSettings")
            .field("settings", &self.settings.len())
            .field("missing", &self.missing)
            .field("uncached", &self.uncached)
            .finish()
    }
}
