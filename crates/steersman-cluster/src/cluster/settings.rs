// SPDX-License-Identifier: Apache-2.0
//! Settings of the cache of a cluster.

use std::{collections::HashSet, fmt, time::Duration};

use steersman_cache::{
    Cache, CacheBuilder, CacheMissPolicy, Index, IndexConflict, IndexValue, InformerContext, InformerOptions,
    Resource, Scope,
};
use steersman_core::Presence;
use tokio::sync::watch;

use crate::Kind;

/// Settings of the cache of a cluster; for [`ClusterBuilder::cache`](crate::ClusterBuilder::cache).
#[derive(Default)]
#[must_use]
pub struct CacheSettings {
    settings: Vec<Setting>,
    pub(super) missing: CacheMissPolicy,
    pub(super) uncached: HashSet<Resource>,
}

type Setting = Box<dyn FnOnce(CacheBuilder) -> Result<CacheBuilder, IndexConflict> + Send>;

impl CacheSettings {
    /// Sets scope and options for every kind without its own settings. Default: all objects, default options.
    ///
    /// Namespaces of the scope do not apply to cluster-scoped kinds; see [`CacheBuilder::defaults`].
    pub fn defaults(self, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.defaults(scope, options)))
    }

    /// Sets scope and options for one kind, instead of the defaults. Namespaces for a cluster-scoped kind are rejected;
    /// see [`Scope::namespace`].
    pub fn kind<K: Kind>(self, scope: Scope, options: InformerOptions) -> Self {
        self.resource(Resource::of::<K>(), scope, options)
    }

    /// Like [`kind`](Self::kind), for a kind that is known at run time.
    pub fn resource(self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.with(|cache| Ok(cache.kind(resource, scope, options)))
    }

    /// Adds an index to every informer of a kind. Building the cluster fails if two indexes have the same name.
    pub fn index<K: Kind, V: IndexValue>(self, index: &Index<V>) -> Self {
        let index = index.clone();
        self.with(move |cache| cache.index(Resource::of::<K>(), &index))
    }

    /// Sets the time for which an informer without a holder is kept. Default: 5 s.
    pub fn linger(self, time: Duration) -> Self {
        self.with(move |cache| Ok(cache.linger(time)))
    }

    /// Sets the behaviour of reads of a kind that has no informer yet. Default: the read starts one.
    pub fn missing(mut self, missing: CacheMissPolicy) -> Self {
        self.missing = missing;
        self
    }

    /// Sends reads of this kind to the server, even if the cache has it. Default: no kind.
    pub fn uncached<K: Kind>(self) -> Self {
        self.uncached_resource(Resource::of::<K>())
    }

    /// Like [`uncached`](Self::uncached), for a kind that is known at run time.
    pub fn uncached_resource(mut self, resource: Resource) -> Self {
        self.uncached.insert(resource);
        self
    }

    pub(super) fn build(
        self,
        context: InformerContext,
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Result<Cache, IndexConflict> {
        let builder = Cache::builder(context).presence(presence, changes);
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
