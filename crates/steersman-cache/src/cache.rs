// SPDX-License-Identifier: Apache-2.0
//! All informers of one cluster, shared by everybody who asks for the same objects.
//!
//! # Guarantees
//! 1. There is one informer for a resource and scope, however many ask for it.
//! 2. Nothing is listed before somebody asks.
//! 3. An informer ends when nobody holds it any more: a short time later, so that one who comes back finds it warm, or
//!    at once where it is [removed](Cache::remove).
//! 4. Metadata and whole objects of a resource come by one watch; it is widened when somebody asks for more.
//! 5. A removed informer says so to those who still hold it; others are not touched.

mod live;
mod reader;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use steersman_core::Task;

pub use reader::{Missing, ReadError, Reader};

use crate::{Informer, InformerOptions, Resource, Scope, Surroundings};

/// How long an informer that nobody holds is kept.
const LINGER: Duration = Duration::from_secs(5);

/// The informers of one cluster.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    surroundings: Surroundings,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    linger: Duration,
    entries: Mutex<BTreeMap<(Resource, Scope), Entry>>,
}

#[derive(Debug)]
struct Entry {
    informer: Informer,
    lease: Weak<Lease>,
    /// Ends the informer, if nobody comes.
    _lingering: Option<Task>,
}

/// A share in an informer of a cache. It is kept running by this.
#[derive(Clone, Debug)]
pub struct Held {
    informer: Informer,
    _lease: Arc<Lease>,
}

/// Says to the cache that nobody holds the informer any more, when it drops.
#[derive(Debug)]
struct Lease {
    key: (Resource, Scope),
    cache: Weak<Inner>,
}

/// What a cache is made of; from [`Cache::builder`].
#[derive(Debug)]
#[must_use]
pub struct CacheBuilder {
    surroundings: Surroundings,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    linger: Duration,
}

impl CacheBuilder {
    /// What holds for every kind that nothing else is said about. Default: all objects, default options.
    pub fn defaults(mut self, scope: Scope, options: InformerOptions) -> Self {
        self.defaults = (scope, options);
        self
    }

    /// What holds for one kind, instead of the defaults.
    pub fn kind(mut self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.kinds.insert(resource, (scope, options));
        self
    }

    /// So long an informer is kept that nobody holds. Default: 5 s.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// The cache. It does nothing until it is asked.
    #[must_use]
    pub fn build(self) -> Cache {
        let Self {
            surroundings,
            defaults,
            kinds,
            linger,
        } = self;
        Cache(Arc::new(Inner {
            surroundings,
            defaults,
            kinds,
            linger,
            entries: Mutex::default(),
        }))
    }
}

impl Cache {
    /// A cache in these surroundings.
    pub fn builder(surroundings: Surroundings) -> CacheBuilder {
        CacheBuilder {
            surroundings,
            defaults: Default::default(),
            kinds: HashMap::new(),
            linger: LINGER,
        }
    }

    /// The informer of a resource with the scope that its options say; started if nobody has asked before.
    #[must_use]
    pub fn informer(&self, resource: &Resource) -> Held {
        self.informer_in(resource, &self.settings(resource).0)
    }

    /// The informer of a part of a resource; started if nobody has asked before.
    ///
    /// Those who want metadata only share the informer of those who want whole objects. If these come later, it is
    /// [widened](Informer::widen).
    #[must_use]
    pub fn informer_in(&self, resource: &Resource, scope: &Scope) -> Held {
        let key = (resource.clone(), scope.whole());
        let mut entries = self.0.lock();
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let (_, options) = self.settings(resource);
            let informer = Informer::start(
                &self.0.surroundings,
                resource.clone(),
                scope.clone(),
                options.clone(),
            );
            Entry {
                informer,
                lease: Weak::new(),
                _lingering: None,
            }
        });
        if !scope.is_metadata_only() {
            entry.informer.widen();
        }
        let lease = entry.lease.upgrade().unwrap_or_else(|| {
            entry._lingering = None;
            let lease = Arc::new(Lease {
                key,
                cache: Arc::downgrade(&self.0),
            });
            entry.lease = Arc::downgrade(&lease);
            lease
        });
        Held {
            informer: entry.informer.clone(),
            _lease: lease,
        }
    }

    /// Ends every informer of a resource at once, also those that somebody holds: they are told by
    /// [`Informer::ended`]. Who asks again starts a new one.
    pub fn remove(&self, resource: &Resource) -> usize {
        let removed: Vec<Entry> = {
            let mut entries = self.0.lock();
            let keys: Vec<_> = entries
                .keys()
                .filter(|(found, _)| found == resource)
                .cloned()
                .collect();
            keys.into_iter().filter_map(|key| entries.remove(&key)).collect()
        };
        removed.iter().for_each(|entry| entry.informer.end());
        removed.len()
    }

    /// The informers that run now, in the order of their resources and scopes. For metrics, each has [its
    /// figures](Informer::stats).
    #[must_use]
    pub fn informers(&self) -> Vec<Informer> {
        self.0
            .lock()
            .values()
            .map(|entry| entry.informer.clone())
            .collect()
    }

    /// Reads through this cache. What its reads start ends with it.
    pub fn reader(&self, missing: Missing) -> Reader {
        Reader::new(self.clone(), missing)
    }

    /// The informer of whole objects of a resource.
    fn whole(&self, resource: &Resource) -> Held {
        self.informer_in(resource, &self.settings(resource).0.whole())
    }

    /// Whether the informer of a resource runs already.
    fn is_running(&self, resource: &Resource) -> bool {
        let scope = self.settings(resource).0.whole();
        self.0.lock().contains_key(&(resource.clone(), scope))
    }

    fn settings(&self, resource: &Resource) -> &(Scope, InformerOptions) {
        self.0.kinds.get(resource).unwrap_or(&self.0.defaults)
    }

    fn surroundings(&self) -> &Surroundings {
        &self.0.surroundings
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Resource, Scope), Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody holds the informer any more: it goes, unless somebody comes in time.
    fn released(self: &Arc<Self>, key: &(Resource, Scope)) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        if entry.lease.strong_count() > 0 {
            return;
        }
        let (cache, key) = (Arc::downgrade(self), key.clone());
        let clock = Arc::clone(self.surroundings.clock());
        let deadline = clock.now() + self.linger;
        entry._lingering = Some(self.surroundings.spawner().spawn("linger", async move {
            clock.sleep_until(deadline).await;
            let Some(cache) = cache.upgrade() else { return };
            let mut entries = cache.lock();
            let is_free = entries
                .get(&key)
                .is_some_and(|entry| entry.lease.strong_count() == 0);
            // Dropped outside of the lock: the end of an informer frees its store.
            let ended = if is_free { entries.remove(&key) } else { None };
            drop(entries);
            drop(ended);
        }));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.released(&self.key);
        }
    }
}

impl Deref for Held {
    type Target = Informer;

    fn deref(&self) -> &Informer {
        &self.informer
    }
}
