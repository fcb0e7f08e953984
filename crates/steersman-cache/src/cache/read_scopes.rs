// SPDX-License-Identifier: Apache-2.0
//! In which scopes a reader reads, and the informers that its reads have opened.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{
    Cache, InformerHandle, ObjectDetail,
    held::{Access, Lease},
};
use crate::{Resource, Scope};

/// The scopes in which a [`Reader`](crate::Reader) reads resources.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use steersman_cache::{ReadScopes, Resource, Scope, ObjectDetail};
///
/// let scopes = ReadScopes::new().with(
///     Resource::of::<Secret>(),
///     Some(Scope::all().labels("app=web")),
///     ObjectDetail::Whole,
/// );
/// # let _ = scopes;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReadScopes {
    declared: HashMap<Resource, Vec<Declared>>,
    notify: Option<Arc<Notify>>,
}

/// Looked up by each read; nobody outside chooses the keys.
pub(super) type ByResource<T> = HashMap<Resource, T, foldhash::fast::RandomState>;

#[derive(Clone, Debug)]
struct Declared {
    scope: Option<Scope>,
    wanted: ObjectDetail,
}

impl ReadScopes {
    /// Every resource as the cache is set up for it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a resource in this scope; without one, in the scope that the cache is set up for. Said several times, in all
    /// of them; see [`View`](crate::View).
    #[must_use]
    pub fn with(mut self, resource: Resource, scope: Option<Scope>, wanted: ObjectDetail) -> Self {
        let scope = scope.map(|scope| scope.whole());
        let declared = self.declared.entry(resource).or_default();
        match declared.iter_mut().find(|known| known.scope == scope) {
            Some(known) if wanted == ObjectDetail::Whole => known.wanted = wanted,
            Some(_) => {}
            None => declared.push(Declared { scope, wanted }),
        }
        self
    }

    /// Notifies of each informer that a read opens or gives up.
    #[must_use]
    pub fn notifying(mut self, notify: Arc<Notify>) -> Self {
        self.notify = Some(notify);
        self
    }

    /// The scopes of each resource.
    pub(super) fn by_resource(&self) -> ByResource<Vec<Option<Scope>>> {
        let scopes = |declared: &Vec<Declared>| declared.iter().map(|one| one.scope.clone()).collect();
        let declared = self.declared.iter();
        declared
            .map(|(resource, declared)| (resource.clone(), scopes(declared)))
            .collect()
    }

    fn declares(&self, cache: &Cache, lease: &Lease, wanted: ObjectDetail) -> bool {
        let declared = self.declared.get(&lease.key.0).into_iter().flatten();
        declared
            .filter(|declared| declared.wanted == ObjectDetail::Whole || declared.wanted == wanted)
            .any(|declared| cache.key_of(&lease.key.0, declared.scope.as_ref()) == lease.key)
    }
}

/// The informers that the reads of a reader, and of those derived from it, have opened.
#[derive(Debug, Default)]
pub(super) struct Opened {
    scopes: ReadScopes,
    by_resource: Mutex<ByResource<Vec<Opening>>>,
}

#[derive(Debug)]
struct Opening {
    scope: Option<Scope>,
    wanted: ObjectDetail,
    held: InformerHandle,
}

impl Opened {
    pub(super) fn new(scopes: ReadScopes) -> Self {
        Self {
            scopes,
            by_resource: Mutex::default(),
        }
    }

    /// The informer, if it was opened and has not ended since.
    pub(super) fn get(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
    ) -> Option<(Access, Arc<Lease>)> {
        let all = self.lock();
        let mut openings = all.get(resource)?.iter();
        let found = openings.find(|opening| opening.is(scope, wanted) && !opening.held.is_ended())?;
        Some((found.held.access.clone(), Arc::clone(&found.held.lease)))
    }

    /// Notes one, in the place of one that has ended.
    pub(super) fn insert(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
        held: InformerHandle,
    ) {
        let ended = {
            let mut all = self.lock();
            let openings = all.entry(resource.clone()).or_default();
            let known = openings.iter().position(|opening| opening.is(scope, wanted));
            let ended = known.map(|known| openings.swap_remove(known));
            openings.push(Opening {
                scope: scope.cloned(),
                wanted,
                held,
            });
            ended
        };
        // Not under the lock: the end of an informer frees its store.
        drop(ended);
        self.notify();
    }

    /// Gives up the informer with this lease, if it is one of these. It may have been opened for metadata and for whole objects.
    pub(super) fn remove(&self, resource: &Resource, lease: &Arc<Lease>) {
        let removed: Vec<Opening> = {
            let mut all = self.lock();
            let openings = all.get_mut(resource);
            let is_it = |opening: &mut Opening| Arc::ptr_eq(&opening.held.lease, lease);
            openings.map_or_else(Vec::new, |openings| openings.extract_if(.., is_it).collect())
        };
        if !removed.is_empty() {
            drop(removed);
            self.notify();
        }
    }

    /// All of them, each with whether the scopes declare it.
    pub(super) fn all(&self, cache: &Cache) -> Vec<(InformerHandle, bool)> {
        let all = self.lock();
        let with_declared = |opening: &Opening| {
            let is_declared = self.scopes.declares(cache, &opening.held.lease, opening.wanted);
            (opening.held.clone(), is_declared)
        };
        all.values().flatten().map(with_declared).collect()
    }

    fn notify(&self) {
        if let Some(notify) = &self.scopes.notify {
            notify.notify_one();
        }
    }

    /// Not held while the cache is asked for an informer, which may wait for handlers.
    fn lock(&self) -> MutexGuard<'_, ByResource<Vec<Opening>>> {
        self.by_resource.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opening {
    fn is(&self, scope: Option<&Scope>, wanted: ObjectDetail) -> bool {
        self.wanted == wanted && self.scope.as_ref() == scope
    }
}
