// SPDX-License-Identifier: Apache-2.0
//! All informers of one cluster, shared by everybody who asks for the same objects.
//!
//! # Guarantees
//! 1. There is one informer for a resource and scope, however many ask for it.
//! 2. Nothing is listed before somebody asks.
//! 3. An informer ends when nobody holds it any more: a short time later, so that one who comes back finds it warm, or
//!    at once where it is [removed](Cache::remove).
//! 4. A removed informer says so to those who still hold it; others are not touched.

mod live;
mod options;
mod reader;

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use steersman_core::Task;

pub use options::KindOptions;
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
    defaults: KindOptions,
    kinds: HashMap<Resource, KindOptions>,
    linger: Duration,
    entries: Mutex<HashMap<(Resource, Scope), Entry>>,
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
    defaults: KindOptions,
    kinds: HashMap<Resource, KindOptions>,
    linger: Duration,
}

impl CacheBuilder {
    /// What holds for every kind that nothing else is said about.
    pub fn defaults(mut self, options: KindOptions) -> Self {
        self.defaults = options;
        self
    }

    /// What holds for one kind, instead of the defaults.
    pub fn kind(mut self, resource: Resource, options: KindOptions) -> Self {
        self.kinds.insert(resource, options);
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
            defaults: KindOptions::default(),
            kinds: HashMap::new(),
            linger: LINGER,
        }
    }

    /// The informer of a resource with the scope that its options say; started if nobody has asked before.
    #[must_use]
    pub fn informer(&self, resource: &Resource) -> Held {
        let scope = self.options(resource).scope().clone();
        self.informer_in(resource, scope)
    }

    /// The informer of a part of a resource; started if nobody has asked before.
    #[must_use]
    pub fn informer_in(&self, resource: &Resource, scope: Scope) -> Held {
        let key = (resource.clone(), scope);
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get_mut(&key) {
            let lease = entry.lease.upgrade().unwrap_or_else(|| {
                entry._lingering = None;
                let lease = Arc::new(Lease {
                    key: key.clone(),
                    cache: Arc::downgrade(&self.0),
                });
                entry.lease = Arc::downgrade(&lease);
                lease
            });
            return Held {
                informer: entry.informer.clone(),
                _lease: lease,
            };
        }
        let options = self.options(resource);
        let informer_options = InformerOptions::default()
            .reflector(options.reflector_options().clone())
            .store(options.store_options());
        let informer = Informer::start(
            &self.0.surroundings,
            resource.clone(),
            key.1.clone(),
            informer_options,
        );
        let lease = Arc::new(Lease {
            key: key.clone(),
            cache: Arc::downgrade(&self.0),
        });
        let entry = Entry {
            informer: informer.clone(),
            lease: Arc::downgrade(&lease),
            _lingering: None,
        };
        entries.insert(key, entry);
        Held {
            informer,
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

    /// The informers that run now.
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

    /// The informer of a resource, if it runs already.
    fn running(&self, resource: &Resource) -> Option<Held> {
        let scope = self.options(resource).scope().clone();
        let runs = self.0.lock().contains_key(&(resource.clone(), scope));
        runs.then(|| self.informer(resource))
    }

    fn options(&self, resource: &Resource) -> &KindOptions {
        self.0.kinds.get(resource).unwrap_or(&self.0.defaults)
    }

    fn surroundings(&self) -> &Surroundings {
        &self.0.surroundings
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Resource, Scope), Entry>> {
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
