// SPDX-License-Identifier: Apache-2.0
//! All informers of one cluster, shared by all callers that ask for the same objects.
//!
//! # Guarantees
//! 1. The cache runs one informer for each resource and scope, however many callers ask for it. One exception:
//!    [changed namespaces](Cache::set_namespaces) can make the scope of a kind equal to a scope that a caller requested
//!    explicitly before. Then that caller's informer runs on until it is dropped; new callers share the informer of the kind.
//! 2. The cache lists nothing before a caller asks.
//! 3. An informer ends when its last handle is dropped: after a short delay, so that a caller that returns finds it in sync,
//!    or immediately if it was [removed](Cache::remove) or marked as idle ([`Cache::end_idle`]).
//! 4. Metadata and whole objects of a resource share one watch. The watch is widened when a caller asks for whole objects.
//! 5. A removed informer notifies the callers that still hold it. Other informers are not affected.
//! 6. Every reader of the cache sees a [write](Cache::wrote) immediately; see [`Overlay`](crate::Overlay).
//! 7. A read of a kind that the server does not have leaves no informer behind; see [`ReadError::Absent`].
//! 8. The cache holds no lock while handlers run or while it waits for them. A handler that is slow, or that calls the cache,
//!    blocks no caller of the cache. It does block the thread that reads for its informer, and with it the other informers
//!    that share the thread.

mod builder;
mod handle;
mod live;
mod read_scopes;
mod reader;
mod view;
mod written;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use steersman_core::{Mutex, Presence, Task};
use tokio::sync::watch;

pub use builder::CacheBuilder;
pub use handle::InformerHandle;
pub use read_scopes::ReadScopes;
pub use reader::{CacheMissPolicy, ObjectDetail, ReadError, Reader};
pub use view::View;

use crate::{Informer, InformerContext, InformerOptions, Resource, Scope, resource::Namespaces};
use builder::Indexes;
use handle::RefCount;

/// The informers of one cluster.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: InformerContext,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    indexes: Indexes,
    linger: Duration,
    /// Namespaces set with `set_namespaces`, by resource.
    namespaces: Mutex<HashMap<Resource, Namespaces>>,
    entries: Mutex<BTreeMap<Key, Entry>>,
    /// Notifies when an informer starts or ends.
    changes: watch::Sender<()>,
}

/// Identifies an informer: its resource, and its scope unless that is the configured one.
type Key = (Resource, Option<Scope>);

#[derive(Debug)]
struct Entry {
    informer: Informer,
    ref_count: Weak<RefCount>,
    /// True if the informer is kept for a while after its last handle is dropped.
    lingers: bool,
    /// Ends the informer after the delay unless a caller asks for it again.
    _lingering: Option<Task>,
}

impl Cache {
    /// Starts building a cache whose informers use this context.
    pub fn builder(context: InformerContext) -> CacheBuilder {
        CacheBuilder::new(context)
    }

    /// Returns the informer of a resource in its configured scope. Starts it if it does not run.
    #[must_use]
    pub fn informer(&self, resource: &Resource) -> InformerHandle {
        self.hold(resource, |configured| configured)
    }

    /// Same as [`informer`](Self::informer), with this much of each object, whatever the options set.
    #[must_use]
    pub fn informer_for(&self, resource: &Resource, wanted: ObjectDetail) -> InformerHandle {
        self.hold(resource, |configured| configured.wanted(wanted))
    }

    /// Returns the configured scope of a resource, which [`informer`](Self::informer) uses.
    pub fn scope(&self, resource: &Resource) -> Scope {
        let (scope, _) = self.settings(resource);
        match self.0.namespaces.lock().get(resource) {
            Some(namespaces) => scope.with_namespaces(namespaces.clone()),
            // The default namespaces do not apply to a cluster-scoped kind.
            None if resource.is_namespaced() == Some(false) && !self.0.kinds.contains_key(resource) => {
                scope.with_namespaces(Namespaces::default())
            }
            None => scope.clone(),
        }
    }

    /// Replaces the configured namespaces of a kind. No namespace, or an empty name, means all namespaces.
    ///
    /// A running informer lists the new namespaces and drops the objects of the others. Other kinds do not change. Informers of
    /// an explicit scope, from [`informer_in`](Self::informer_in), keep their scope.
    pub fn set_namespaces<'a>(&self, resource: &Resource, namespaces: impl IntoIterator<Item = &'a str>) {
        let namespaces: Namespaces = namespaces.into_iter().collect();
        let informer = {
            // Under the lock of the informers, so that no informer starts with the old namespaces meanwhile.
            let entries = self.0.entries.lock();
            self.0
                .namespaces
                .lock()
                .insert(resource.clone(), namespaces.clone());
            let entry = entries.get(&(resource.clone(), None));
            let informer = entry.map(|entry| entry.informer.clone());
            if let Some(informer) = &informer {
                informer.want_namespaces(namespaces);
            }
            informer
        };
        // Outside the lock: this waits for handlers and calls them.
        if let Some(informer) = informer {
            informer.adjust();
        }
    }

    /// Returns the informer of a resource in an explicit scope. Starts it if it does not run.
    ///
    /// Callers that need only metadata share the informer of callers that need whole objects. If a caller asks for whole objects
    /// later, the informer is [widened](Informer::widen).
    #[must_use]
    pub fn informer_in(&self, resource: &Resource, scope: &Scope) -> InformerHandle {
        self.hold(resource, |_| scope.clone())
    }

    /// Returns the informer of the scope that `choose` derives from the configured scope. Starts it if it does not run.
    fn hold(&self, resource: &Resource, choose: impl FnOnce(Scope) -> Scope) -> InformerHandle {
        // All under one lock: a concurrent change of namespaces happens entirely before or entirely after this.
        let mut entries = self.0.entries.lock();
        let scope = choose(self.scope(resource));
        let key = self.key(resource, &scope);
        let entry = entries
            .entry(key.clone())
            .or_insert_with(|| self.start(resource, &scope));
        entry.lingers = true;
        let ref_count = entry.ref_count.upgrade().unwrap_or_else(|| {
            entry._lingering = None;
            let ref_count = Arc::new(RefCount {
                key,
                cache: Arc::downgrade(&self.0),
            });
            entry.ref_count = Arc::downgrade(&ref_count);
            ref_count
        });
        if !scope.is_metadata_only() {
            entry.informer.widen();
        }
        let informer = entry.informer.clone();
        InformerHandle { informer, ref_count }
    }

    fn start(&self, resource: &Resource, scope: &Scope) -> Entry {
        let (_, options) = self.settings(resource);
        let informer = Informer::start(&self.0.context, resource.clone(), scope.clone(), options.clone());
        self.0.indexes.add_to(resource, informer.store());
        self.0.changes.send_replace(());
        Entry {
            informer,
            ref_count: Weak::new(),
            lingers: true,
            _lingering: None,
        }
    }

    /// Returns the informer of a scope, or of the configured scope for `None`, if a handle to it exists. The result is no handle:
    /// it does not keep the informer running. An informer that only lingers is not returned.
    fn running(&self, resource: &Resource, part: Option<&Scope>, wanted: ObjectDetail) -> Option<Informer> {
        let informer = {
            let entries = self.0.entries.lock();
            let entry = entries
                .get(&self.key_of(resource, part))
                .filter(|entry| entry.ref_count.strong_count() > 0)?;
            entry.informer.clone()
        };
        if wanted == ObjectDetail::Full {
            informer.widen();
        }
        Some(informer)
    }

    /// Ends every informer of a resource immediately, including informers in use. Their holders notice by [`Informer::ended`].
    /// The next call that asks for the resource starts a new informer. Returns the number of ended informers.
    pub fn remove(&self, resource: &Resource) -> usize {
        let removed: Vec<Entry> = {
            let mut entries = self.0.entries.lock();
            let keys: Vec<_> = entries
                .keys()
                .filter(|(found, _)| found == resource)
                .cloned()
                .collect();
            keys.into_iter().filter_map(|key| entries.remove(&key)).collect()
        };
        removed.iter().for_each(|entry| entry.informer.end());
        self.0.changes.send_replace(());
        removed.len()
    }

    /// Ends the unused informers of a resource that only linger. Informers in use continue; they end without delay when their
    /// last handle is dropped, unless another caller asks for them before. Returns the number of ended informers.
    pub fn end_idle(&self, resource: &Resource) -> usize {
        let ended: Vec<Entry> = {
            let mut entries = self.0.entries.lock();
            let of_it = entries.iter_mut().filter(|((found, _), _)| found == resource);
            let mut idle = Vec::new();
            for (key, entry) in of_it {
                entry.lingers = false;
                if entry.ref_count.strong_count() == 0 {
                    idle.push(key.clone());
                }
            }
            idle.into_iter().filter_map(|key| entries.remove(&key)).collect()
        };
        if !ended.is_empty() {
            self.0.changes.send_replace(());
        }
        ended.len()
    }

    /// Returns the running informers, ordered by resource and scope. Each has [figures](Informer::stats) for metrics.
    #[must_use]
    pub fn informers(&self) -> Vec<Informer> {
        self.0
            .entries
            .lock()
            .values()
            .map(|entry| entry.informer.clone())
            .collect()
    }

    /// Returns a channel that notifies when an informer starts or ends.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Returns a reader of this cache. Informers that its reads start end with it.
    pub fn reader(&self, missing: CacheMissPolicy) -> Reader {
        self.reader_in(missing, ReadScopes::new())
    }

    /// Same as [`reader`](Self::reader), with explicit scopes for some resources.
    pub fn reader_in(&self, missing: CacheMissPolicy, scopes: ReadScopes) -> Reader {
        Reader::new(self.clone(), missing, scopes)
    }

    /// Returns true if an informer of this scope, or of the configured scope for `None`, exists, for whole objects or metadata.
    fn is_running(&self, resource: &Resource, part: Option<&Scope>) -> bool {
        let entries = self.0.entries.lock();
        entries.contains_key(&self.key_of(resource, part))
    }

    fn key_of(&self, resource: &Resource, part: Option<&Scope>) -> Key {
        match part {
            Some(scope) => self.key(resource, scope),
            None => (resource.clone(), None),
        }
    }

    fn key(&self, resource: &Resource, scope: &Scope) -> Key {
        let (whole, configured) = (scope.whole(), self.scope(resource).whole());
        (resource.clone(), Some(whole).filter(|whole| *whole != configured))
    }

    /// Returns true if the server is known, without a request, not to have a kind.
    fn is_absent(&self, resource: &Resource) -> bool {
        self.0.context.known().presence(resource) == Presence::Absent
    }

    fn settings(&self, resource: &Resource) -> &(Scope, InformerOptions) {
        self.0.kinds.get(resource).unwrap_or(&self.0.defaults)
    }

    fn context(&self) -> &InformerContext {
        &self.0.context
    }
}

impl Inner {
    /// Called when the last handle of an informer is dropped. Ends the informer, after the delay if it lingers.
    fn released(self: &Arc<Self>, key: &Key) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        if entry.ref_count.strong_count() > 0 {
            return;
        }
        if !entry.lingers {
            // Dropped outside the lock: the end of an informer frees its store.
            let ended = entries.remove(key);
            drop(entries);
            drop(ended);
            self.changes.send_replace(());
            return;
        }
        let (cache, key) = (Arc::downgrade(self), key.clone());
        let clock = Arc::clone(self.context.clock());
        let deadline = clock.now() + self.linger;
        entry._lingering = Some(self.context.spawner().spawn("linger", async move {
            clock.sleep_until(deadline).await;
            let Some(cache) = cache.upgrade() else { return };
            let mut entries = cache.entries.lock();
            let is_free = entries
                .get(&key)
                .is_some_and(|entry| entry.ref_count.strong_count() == 0);
            // Dropped outside the lock: the end of an informer frees its store.
            let ended = if is_free { entries.remove(&key) } else { None };
            drop(entries);
            drop(ended);
            cache.changes.send_replace(());
        }));
    }
}
