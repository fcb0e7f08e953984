// SPDX-License-Identifier: Apache-2.0
//! The scopes in which a reader reads, and the informers that its reads open.

use std::{collections::HashMap, sync::Arc};

use steersman_core::Mutex;

use tokio::sync::Notify;

use super::{Cache, InformerHandle, ObjectDetail, handle::RefCount};
use crate::{Informer, Resource, Scope, Store};

/// The scopes in which a [`Reader`](crate::Reader) reads resources.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use steersman_cache::{ReadScopes, Resource, Scope, ObjectDetail};
///
/// let scopes = ReadScopes::new().with(
///     Resource::of::<Secret>(),
///     Some(Scope::all().labels("app=web")),
///     ObjectDetail::Full,
/// );
/// # let _ = scopes;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReadScopes {
    declared: HashMap<Resource, Vec<Declared>>,
    notify: Option<Arc<Notify>>,
}

/// A map looked up by each read. A fast hash is safe, since no outsider chooses the keys.
pub(super) type ByResource<T> = HashMap<Resource, T, foldhash::fast::RandomState>;

#[derive(Clone, Debug)]
struct Declared {
    scope: Option<Scope>,
    wanted: ObjectDetail,
}

impl ReadScopes {
    /// Reads every resource in its configured scope.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a scope in which a resource is read; `None` is the configured scope. With several scopes, a read covers all of
    /// them; see [`View`](crate::View).
    #[must_use]
    pub fn with(mut self, resource: Resource, scope: Option<Scope>, wanted: ObjectDetail) -> Self {
        let scope = scope.map(|scope| scope.whole());
        let declared = self.declared.entry(resource).or_default();
        match declared.iter_mut().find(|known| known.scope == scope) {
            Some(known) if wanted == ObjectDetail::Full => known.wanted = wanted,
            Some(_) => {}
            None => declared.push(Declared { scope, wanted }),
        }
        self
    }

    /// Sets a notification for each informer that a read opens or releases.
    #[must_use]
    pub fn notifying(mut self, notify: Arc<Notify>) -> Self {
        self.notify = Some(notify);
        self
    }

    /// Returns the scopes of each resource.
    pub(super) fn by_resource(&self) -> ByResource<Vec<Option<Scope>>> {
        let scopes = |declared: &Vec<Declared>| declared.iter().map(|one| one.scope.clone()).collect();
        let declared = self.declared.iter();
        declared
            .map(|(resource, declared)| (resource.clone(), scopes(declared)))
            .collect()
    }

    /// Returns true if a resource is declared in this scope with its metadata only.
    fn is_metadata_only(&self, resource: &Resource, scope: Option<&Scope>) -> bool {
        let mut declared = self.declared.get(resource).into_iter().flatten();
        let found = declared.find(|declared| declared.scope.as_ref() == scope);
        found.is_some_and(|declared| declared.wanted == ObjectDetail::Metadata)
    }

    fn declares(&self, cache: &Cache, ref_count: &RefCount, wanted: ObjectDetail) -> bool {
        let declared = self.declared.get(&ref_count.key.0).into_iter().flatten();
        declared
            .filter(|declared| declared.wanted == ObjectDetail::Full || declared.wanted == wanted)
            .any(|declared| cache.key_of(&ref_count.key.0, declared.scope.as_ref()) == ref_count.key)
    }
}

/// The informers opened by the reads of a reader and of the readers derived from it.
#[derive(Debug, Default)]
pub(super) struct Opened {
    scopes: ReadScopes,
    /// Not locked while the cache is asked for an informer, since that can wait for handlers.
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

    /// Returns true if the scopes declare a resource with its metadata only.
    pub(super) fn is_metadata_only(&self, resource: &Resource, scope: Option<&Scope>) -> bool {
        self.scopes.is_metadata_only(resource, scope)
    }

    /// Returns the objects of an opened informer that is in sync for a namespace.
    pub(super) fn readable(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
        namespace: &str,
    ) -> Option<Store> {
        let all = self.by_resource.lock();
        let mut openings = all.get(resource)?.iter();
        let found = openings.find(|opening| opening.is(scope, wanted))?;
        found.held.is_readable_in(namespace).then(|| found.held.view())
    }

    /// Returns the informer if it was opened and has not ended since.
    pub(super) fn get(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
    ) -> Option<(Informer, Arc<RefCount>)> {
        let all = self.by_resource.lock();
        let mut openings = all.get(resource)?.iter();
        let found = openings.find(|opening| opening.is(scope, wanted) && !opening.held.is_ended())?;
        Some((found.held.informer.clone(), Arc::clone(&found.held.ref_count)))
    }

    /// Records an opened informer, replacing one that has ended.
    pub(super) fn insert(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
        held: InformerHandle,
    ) {
        let ended = {
            let mut all = self.by_resource.lock();
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
        // Outside the lock: the end of an informer frees its store.
        drop(ended);
        self.notify();
    }

    /// Releases the informer with this lease, if it was opened here, for metadata and for whole objects.
    pub(super) fn remove(&self, resource: &Resource, ref_count: &Arc<RefCount>) {
        let removed: Vec<Opening> = {
            let mut all = self.by_resource.lock();
            let openings = all.get_mut(resource);
            let is_it = |opening: &mut Opening| Arc::ptr_eq(&opening.held.ref_count, ref_count);
            openings.map_or_else(Vec::new, |openings| openings.extract_if(.., is_it).collect())
        };
        if !removed.is_empty() {
            drop(removed);
            self.notify();
        }
    }

    /// Returns all opened informers. The flag is true if the scopes declare the informer.
    pub(super) fn all(&self, cache: &Cache) -> Vec<(InformerHandle, bool)> {
        let all = self.by_resource.lock();
        let with_declared = |opening: &Opening| {
            let is_declared = self
                .scopes
                .declares(cache, &opening.held.ref_count, opening.wanted);
            (opening.held.clone(), is_declared)
        };
        all.values().flatten().map(with_declared).collect()
    }

    fn notify(&self) {
        if let Some(notify) = &self.scopes.notify {
            notify.notify_one();
        }
    }
}

impl Opening {
    fn is(&self, scope: Option<&Scope>, wanted: ObjectDetail) -> bool {
        self.wanted == wanted && self.scope.as_ref() == scope
    }
}
