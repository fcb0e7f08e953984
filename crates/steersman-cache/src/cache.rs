// SPDX-License-Identifier: Apache-2.0
//! All informers of one cluster, shared by everybody who asks for the same objects.
//!
//! # Guarantees
//! 1. There is one informer for a resource and scope, however many ask for it. Only where
//!    [changed namespaces](Cache::set_namespaces) make the scope of a kind what somebody has asked for by themselves
//!    before, theirs goes on until they let it go; who asks from then on shares that of the kind.
//! 2. Nothing is listed before somebody asks.
//! 3. An informer ends when nobody holds it any more: a short time later, so that one who comes back finds it warm, or
//!    at once where it is [removed](Cache::remove), or not wanted back ([`Cache::end_idle`]).
//! 4. Metadata and whole objects of a resource come by one watch; it is widened when somebody asks for more.
//! 5. A removed informer says so to those who still hold it; others are not touched.
//! 6. What was [written](Cache::wrote) is seen by every reader of the cache at once; see [`Overlay`](crate::Overlay).
//! 7. A read of a kind that the server does not have leaves no informer behind; see [`ReadError::Absent`].
//! 8. No lock of the cache is held while handlers run or are waited for. A handler that is slow, or that asks the cache for
//!    something, blocks no caller of the cache. It does block the thread that reads for its informer, and with it the other
//!    informers that share the thread.

mod held;
mod live;
mod read_scopes;
mod reader;
mod view;
mod written;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use steersman_core::{Presence, Task};
use tokio::sync::watch;

pub use held::InformerHandle;
pub use read_scopes::ReadScopes;
pub use reader::{CacheMissPolicy, ObjectDetail, ReadError, Reader};
pub use view::View;

use crate::{
    Index, IndexConflict, IndexValue, Informer, InformerContext, InformerOptions, Resource, Scope, Store,
    StoreOptions, known::Known, resource::Namespaces, store,
};
use held::{Access, Lease};

/// How long an informer that nobody holds is kept.
const LINGER: Duration = Duration::from_secs(5);

/// The informers of one cluster.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    surroundings: InformerContext,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    indexes: Indexes,
    linger: Duration,
    /// What was said about namespaces since.
    namespaces: Mutex<HashMap<Resource, Namespaces>>,
    entries: Mutex<BTreeMap<Key, Entry>>,
    /// Says that an informer came or went.
    changes: watch::Sender<()>,
}

/// What an informer is about: a resource, and which part of it if not the one that the options say.
type Key = (Resource, Option<Scope>);

#[derive(Debug)]
struct Entry {
    access: Access,
    lease: Weak<Lease>,
    /// Whether it is kept for a while when nobody holds it any more.
    lingers: bool,
    /// Ends the informer, if nobody comes.
    _lingering: Option<Task>,
}

/// What a cache is made of; from [`Cache::builder`].
#[derive(Debug)]
#[must_use]
pub struct CacheBuilder {
    surroundings: InformerContext,
    defaults: (Scope, InformerOptions),
    kinds: HashMap<Resource, (Scope, InformerOptions)>,
    indexes: Indexes,
    linger: Duration,
}

/// What adds an index to a store.
type AddIndex = Box<dyn Fn(&Store) -> Result<(), IndexConflict> + Send + Sync>;

/// The indexes of each kind, added to every store of it.
#[derive(Default)]
struct Indexes(HashMap<Resource, Vec<AddIndex>>);

impl CacheBuilder {
    /// What holds for every kind that nothing else is said about. Default: all objects, default options.
    ///
    /// Namespaces are not meant for kinds that are in none: of these, all objects are kept that the selectors select. A
    /// type tells whether its kind is one of them, and so does a resource from discovery; of one that was made by
    /// [its names](Resource::new), [somebody has to say it](Resource::namespaced).
    pub fn defaults(mut self, scope: Scope, options: InformerOptions) -> Self {
        self.defaults = (scope, options);
        self
    }

    /// What holds for one kind, instead of the defaults. Namespaces for a kind that is in none are refused; see
    /// [`Scope::namespace`].
    pub fn kind(mut self, resource: Resource, scope: Scope, options: InformerOptions) -> Self {
        self.kinds.insert(resource, (scope, options));
        self
    }

    /// Keeps an index with every informer of a kind, from its first object on.
    ///
    /// # Errors
    /// When the kind has another index of this name.
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

    /// So long an informer is kept that nobody holds. Default: 5 s.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Who knows, without asking the server, whether it has a kind, and says when that may have changed. Reads of a kind
    /// that is absent then send nothing, and neither do informers of it once the server has refused them, until the kind
    /// is there. Default: nobody does, and the server is asked.
    pub fn presence(
        mut self,
        presence: impl Fn(&Resource) -> Presence + Send + Sync + 'static,
        changes: watch::Receiver<()>,
    ) -> Self {
        self.surroundings = self.surroundings.knowing(Known::new(presence, changes));
        self
    }

    /// The cache. It does nothing until it is asked.
    #[must_use]
    pub fn build(self) -> Cache {
        let Self {
            surroundings,
            defaults,
            kinds,
            indexes,
            linger,
        } = self;
        Cache(Arc::new(Inner {
            surroundings,
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

impl Cache {
    /// A cache in these surroundings.
    pub fn builder(surroundings: InformerContext) -> CacheBuilder {
        CacheBuilder {
            surroundings,
            defaults: Default::default(),
            kinds: HashMap::new(),
            indexes: Indexes::default(),
            linger: LINGER,
        }
    }

    /// The informer of a resource with the scope that its options say; started if nobody has asked before.
    #[must_use]
    pub fn informer(&self, resource: &Resource) -> InformerHandle {
        self.hold(resource, |configured| configured)
    }

    /// The same for one who wants so much of each object, whatever the options say about that.
    #[must_use]
    pub fn informer_for(&self, resource: &Resource, wanted: ObjectDetail) -> InformerHandle {
        self.hold(resource, |configured| configured.wanted(wanted))
    }

    /// The part of a resource that [`informer`](Self::informer) is about.
    pub fn scope(&self, resource: &Resource) -> Scope {
        let (scope, _) = self.settings(resource);
        match lock(&self.0.namespaces).get(resource) {
            Some(namespaces) => scope.with_namespaces(namespaces.clone()),
            // The namespaces of the defaults are not meant for a kind that is in none.
            None if resource.is_namespaced() == Some(false) && !self.0.kinds.contains_key(resource) => {
                scope.with_namespaces(Namespaces::default())
            }
            None => scope.clone(),
        }
    }

    /// Changes the namespaces of a kind, instead of those that its options say; none, or an empty name, means all of them. An informer that
    /// runs lists those that are new and drops what is in the others; for nobody else is anything changed.
    ///
    /// Those who have asked for a part of the resource by themselves, with [`informer_in`](Self::informer_in), keep it.
    pub fn set_namespaces<'a>(&self, resource: &Resource, namespaces: impl IntoIterator<Item = &'a str>) {
        let namespaces: Namespaces = namespaces.into_iter().collect();
        let informer = {
            // Under the lock of the informers, so that none is started with the old ones meanwhile.
            let entries = self.0.lock();
            lock(&self.0.namespaces).insert(resource.clone(), namespaces.clone());
            let entry = entries.get(&(resource.clone(), None));
            let informer = entry.map(|entry| entry.access.informer.clone());
            if let Some(informer) = &informer {
                informer.want_namespaces(namespaces);
            }
            informer
        };
        // Not under it: this waits for handlers, and calls them.
        if let Some(informer) = informer {
            informer.adjust();
        }
    }

    /// The informer of a part of a resource; started if nobody has asked before.
    ///
    /// Those who want metadata only share the informer of those who want whole objects. If these come later, it is
    /// [widened](Informer::widen).
    #[must_use]
    pub fn informer_in(&self, resource: &Resource, scope: &Scope) -> InformerHandle {
        self.hold(resource, |_| scope.clone())
    }

    /// The informer of the part that `choose` makes of the one which the options say; started if nobody has asked before.
    fn hold(&self, resource: &Resource, choose: impl FnOnce(Scope) -> Scope) -> InformerHandle {
        // All under one lock: namespaces that change meanwhile change before this or after it.
        let mut entries = self.0.lock();
        let scope = choose(self.scope(resource));
        let key = self.key(resource, &scope);
        let entry = entries
            .entry(key.clone())
            .or_insert_with(|| self.start(resource, &scope));
        entry.lingers = true;
        let lease = entry.lease.upgrade().unwrap_or_else(|| {
            entry._lingering = None;
            let lease = Arc::new(Lease {
                key,
                cache: Arc::downgrade(&self.0),
            });
            entry.lease = Arc::downgrade(&lease);
            lease
        });
        if !scope.is_metadata_only() {
            entry.access.informer.widen();
        }
        let access = entry.access.clone();
        InformerHandle { access, lease }
    }

    fn start(&self, resource: &Resource, scope: &Scope) -> Entry {
        let (_, options) = self.settings(resource);
        let informer = Informer::start(
            &self.0.surroundings,
            resource.clone(),
            scope.clone(),
            options.clone(),
        );
        self.0.indexes.add_to(resource, informer.store());
        self.0.changes.send_replace(());
        Entry {
            access: Access {
                informer,
                overlay: Arc::default(),
            },
            lease: Weak::new(),
            lingers: true,
            _lingering: None,
        }
    }

    /// The informer of a part, or of the one that the options say, if somebody holds it. It is no share in it, so that
    /// it ends with theirs, and one that only lingers is none to read from.
    fn running(&self, resource: &Resource, part: Option<&Scope>, wanted: ObjectDetail) -> Option<Access> {
        let access = {
            let entries = self.0.lock();
            let entry = entries
                .get(&self.key_of(resource, part))
                .filter(|entry| entry.lease.strong_count() > 0)?;
            entry.access.clone()
        };
        if wanted == ObjectDetail::Whole {
            access.informer.widen();
        }
        Some(access)
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
        removed.iter().for_each(|entry| entry.access.informer.end());
        self.0.changes.send_replace(());
        removed.len()
    }

    /// Ends those informers of a resource that nobody holds, and that linger in case somebody comes back. Those that
    /// somebody holds go on, and do not linger once they are let go, unless somebody else comes before.
    pub fn end_idle(&self, resource: &Resource) -> usize {
        let ended: Vec<Entry> = {
            let mut entries = self.0.lock();
            let of_it = entries.iter_mut().filter(|((found, _), _)| found == resource);
            let mut idle = Vec::new();
            for (key, entry) in of_it {
                entry.lingers = false;
                if entry.lease.strong_count() == 0 {
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

    /// The informers that run now, in the order of their resources and scopes. For metrics, each has [its
    /// figures](Informer::stats).
    #[must_use]
    pub fn informers(&self) -> Vec<Informer> {
        self.0
            .lock()
            .values()
            .map(|entry| entry.access.informer.clone())
            .collect()
    }

    /// Says that an informer came or went since it was looked at.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Reads through this cache. What its reads start ends with it.
    pub fn reader(&self, missing: CacheMissPolicy) -> Reader {
        self.reader_in(missing, ReadScopes::new())
    }

    /// As [`reader`](Self::reader), where resources are read in these scopes.
    pub fn reader_in(&self, missing: CacheMissPolicy, scopes: ReadScopes) -> Reader {
        Reader::new(self.clone(), missing, scopes)
    }

    /// Whether the informer of a part, or of the one that the options say, is there already; of whole objects or of
    /// metadata.
    fn is_running(&self, resource: &Resource, part: Option<&Scope>) -> bool {
        let entries = self.0.lock();
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

    /// Whether it is known, without asking the server, that it does not have a kind.
    fn is_absent(&self, resource: &Resource) -> bool {
        self.0.surroundings.known().presence(resource) == Presence::Absent
    }

    fn settings(&self, resource: &Resource) -> &(Scope, InformerOptions) {
        self.0.kinds.get(resource).unwrap_or(&self.0.defaults)
    }

    fn surroundings(&self) -> &InformerContext {
        &self.0.surroundings
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        lock(&self.entries)
    }

    /// Nobody holds the informer any more: it goes, unless somebody comes in time.
    fn released(self: &Arc<Self>, key: &Key) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(key) else { return };
        if entry.lease.strong_count() > 0 {
            return;
        }
        if !entry.lingers {
            // Dropped outside of the lock: the end of an informer frees its store.
            let ended = entries.remove(key);
            drop(entries);
            drop(ended);
            self.changes.send_replace(());
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
            cache.changes.send_replace(());
        }));
    }
}

/// What is locked here is whole after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Indexes {
    fn add_to(&self, resource: &Resource, store: &Store) {
        for add in self.0.get(resource).into_iter().flatten() {
            let added = add(store);
            debug_assert!(
                added.is_ok(),
                "the builder refuses indexes that do not go together"
            );
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
