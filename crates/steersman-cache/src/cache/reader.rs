// SPDX-License-Identifier: Apache-2.0
//! Reading typed objects through a cache.

use std::sync::Arc;

use kube::Resource as KubeResource;
use serde::de::DeserializeOwned;

use super::{
    Cache, InformerHandle, ReadScopes, View,
    held::{Access, Lease},
    live,
    read_scopes::{ByResource, Opened},
};
use crate::{DecodeError, Informer, Query, Resource, Scope, WatchError};

/// What to do with a kind that has no informer yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheMissPolicy {
    /// Start one, and wait until it is in sync.
    #[default]
    Start,
    /// Ask the server.
    Live,
    /// Refuse.
    Refuse,
}

/// Reads typed objects through a cache.
///
/// Informers that its reads start belong to it and to the readers derived from it: they end some time after these do.
///
/// # Scopes
/// A read sees the objects in the [scopes](ReadScopes) of its reader, or, where these say nothing of the resource, in the
/// scope that the cache is set up for. It does not see others: an object that a label or field selector leaves out is not
/// found, and a namespace that no scope contains is an [error](ReadError::UnknownNamespace). To read in another scope, say
/// so: [`in_scope`](Self::in_scope).
#[derive(Debug)]
pub struct Reader {
    cache: Cache,
    missing: CacheMissPolicy,
    /// In which scopes a resource is read, where that is not the one that the cache is set up for.
    scopes: ByResource<Vec<Option<Scope>>>,
    opened: Arc<Opened>,
}

/// How much of each object a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an API server knows these two")]
pub enum ObjectDetail {
    /// All of it.
    Whole,
    /// Its metadata, which an informer of either has.
    Metadata,
}

/// A cached read has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no informer for the kind and the reader may not start one, or it was removed while somebody waited.
    #[error("{resource} is not cached: watch it, or let the reader start an informer or read live")]
    NotCached {
        /// The kind that was asked for.
        resource: Resource,
    },
    /// The server does not have the kind. Each read asks anew, and none leaves an informer behind.
    #[error("the server does not have {resource}")]
    Absent {
        /// The kind that was asked for.
        resource: Resource,
    },
    /// The informer is not in sync, so that what it holds may be a part only.
    #[error("{resource} is not in sync: {reason}")]
    NotSynced {
        /// The kind that was asked for.
        resource: Resource,
        /// What is in the way.
        reason: Arc<WatchError>,
    },
    /// The cache holds other namespaces only.
    #[error("{resource} is cached in namespace {cached} only, not in {asked}")]
    UnknownNamespace {
        /// The kind that was asked for.
        resource: Resource,
        /// The namespace that is cached.
        cached: String,
        /// The one that was asked for.
        asked: String,
    },
    /// The object does not have the shape of the type.
    #[error(transparent)]
    Decode(DecodeError),
    /// The server refused a live read.
    #[error("reading {resource} live failed")]
    Live {
        /// The kind that was asked for.
        resource: Resource,
        /// Why.
        #[source]
        source: WatchError,
    },
}

impl ReadError {
    fn of_live(resource: Resource, source: WatchError) -> Self {
        match source {
            WatchError::Absent => Self::Absent { resource },
            source => Self::Live { resource, source },
        }
    }
}

impl Reader {
    pub(super) fn new(cache: Cache, missing: CacheMissPolicy, scopes: ReadScopes) -> Self {
        Self {
            cache,
            missing,
            scopes: scopes.by_resource(),
            opened: Arc::new(Opened::new(scopes)),
        }
    }

    /// The same, which reads a resource in this scope. They share their informers.
    #[must_use]
    pub fn in_scope(&self, resource: &Resource, scope: &Scope) -> Self {
        let mut scopes = self.scopes.clone();
        scopes.insert(resource.clone(), vec![Some(scope.whole())]);
        Self {
            cache: self.cache.clone(),
            missing: self.missing,
            scopes,
            opened: Arc::clone(&self.opened),
        }
    }

    /// The informers that its reads have opened, each with whether its [scopes](ReadScopes) declare it.
    #[must_use]
    pub fn opened(&self) -> Vec<(InformerHandle, bool)> {
        self.opened.all(&self.cache)
    }

    /// The object of this name, or nothing if there is none. The namespace is empty for a cluster-scoped kind.
    ///
    /// # Errors
    /// When the cache cannot say.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<Arc<K>>, ReadError>
    where
        K: KubeResource<DynamicType = ()>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let resource = Resource::of::<K>();
        let found = match self.view(&resource, namespace, ObjectDetail::Whole).await? {
            Some(view) => view.get(namespace, name),
            None => live::get(self.cache.surroundings(), &resource, namespace, name)
                .await
                .map_err(|source| ReadError::of_live(resource, source))?,
        };
        found
            .map(|object| object.decoded::<K>())
            .transpose()
            .map_err(ReadError::Decode)
    }

    /// The objects that `query` selects.
    ///
    /// # Errors
    /// When the cache cannot say, or one of the objects does not have the shape of a `K`.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list<K>(&self, query: &Query) -> Result<Vec<Arc<K>>, ReadError>
    where
        K: KubeResource<DynamicType = ()>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let resource = Resource::of::<K>();
        let namespace = query.wanted_namespace().unwrap_or_default();
        let objects = match self.view(&resource, namespace, ObjectDetail::Whole).await? {
            Some(view) => view.list(query),
            None => live::list(self.cache.surroundings(), &resource, query)
                .await
                .map_err(|source| ReadError::of_live(resource, source))?,
        };
        objects
            .iter()
            .map(|object| object.decoded::<K>())
            .collect::<Result<_, _>>()
            .map_err(ReadError::Decode)
    }

    /// What can be read of a resource in a namespace, or in all of them as the empty name, with what was
    /// [written](Cache::wrote) and has not come back yet. Nothing where the server is to be asked.
    ///
    /// # Errors
    /// When the cache cannot say.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn view(
        &self,
        resource: &Resource,
        namespace: &str,
        wanted: ObjectDetail,
    ) -> Result<Option<View>, ReadError> {
        let scopes = match self.scopes.get(resource).map(Vec::as_slice) {
            Some(scopes @ [_, _, ..]) => scopes,
            one => {
                let scope = one.and_then(|one| one.first()?.as_ref());
                let access = self.access(resource, scope, namespace, wanted).await?;
                return Ok(access.map(|access| View::of(access.view())));
            }
        };
        let (mut stores, mut outside) = (Vec::new(), None);
        for scope in scopes {
            match self.access(resource, scope.as_ref(), namespace, wanted).await {
                Ok(Some(access)) => stores.push((access.informer.scope().whole(), access.view())),
                Ok(None) => return Ok(None),
                Err(error @ ReadError::UnknownNamespace { .. }) => outside = Some(error),
                Err(error) => return Err(error),
            }
        }
        match (View::union(stores), outside) {
            (None, Some(error)) => Err(error),
            (view, _) => Ok(view),
        }
    }

    /// The informer of one scope, once it can answer for a namespace.
    async fn access(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        namespace: &str,
        wanted: ObjectDetail,
    ) -> Result<Option<Access>, ReadError> {
        let Some((access, share)) = self.informer(resource, scope, wanted)? else {
            return Ok(None);
        };
        match ready(&access.informer, namespace).await {
            Ok(()) => Ok(Some(access)),
            Err(error) => {
                if let (ReadError::Absent { .. }, Some(share)) = (&error, share) {
                    drop(access);
                    self.let_go(resource, share);
                }
                Err(error)
            }
        }
    }

    /// Gives up the informer of a kind that is not there, which would ask for it again and again. One that somebody else
    /// holds goes on.
    fn let_go(&self, resource: &Resource, share: Arc<Lease>) {
        self.opened.remove(resource, &share);
        drop(share);
        self.cache.end_idle(resource);
    }

    /// The informer to read from, or nothing where the server is to be asked. A reader that starts informers has a share
    /// in those that it reads from. One that may not start any has none, or it would keep alive what it may not start.
    fn informer(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
    ) -> Result<Option<Read>, ReadError> {
        if self.missing != CacheMissPolicy::Start {
            let running = self.cache.running(resource, scope, wanted);
            return match (running, self.missing) {
                (Some(access), _) => Ok(Some((access, None))),
                (None, _) if self.cache.is_absent(resource) => Err(ReadError::Absent {
                    resource: resource.clone(),
                }),
                (None, CacheMissPolicy::Live) => Ok(None),
                (None, _) => Err(ReadError::NotCached {
                    resource: resource.clone(),
                }),
            };
        }
        if let Some((access, lease)) = self.opened.get(resource, scope, wanted) {
            return Ok(Some((access, Some(lease))));
        }
        if !self.cache.is_running(resource, scope) && self.cache.is_absent(resource) {
            return Err(ReadError::Absent {
                resource: resource.clone(),
            });
        }
        let held = match scope {
            Some(scope) => self.cache.informer_in(resource, &scope.wanted(wanted)),
            None => self.cache.informer_for(resource, wanted),
        };
        self.opened.insert(resource, scope, wanted, held.clone());
        Ok(Some((held.access, Some(held.lease))))
    }
}

/// What is read from, and the reader's share in it, if it has one.
type Read = (Access, Option<Arc<Lease>>);

/// Waits until the informer can answer for this namespace, or something is in the way. How it stands with others does
/// not matter.
async fn ready(informer: &Informer, namespace: &str) -> Result<(), ReadError> {
    let resource = || informer.resource().clone();
    let health = match informer.settled_in(namespace).await {
        Ok(health) => health,
        Err(scope) => {
            let cached = scope.parts().into_iter().collect::<Vec<_>>().join(", ");
            let asked = if namespace.is_empty() {
                "all namespaces".to_owned()
            } else {
                namespace.to_owned()
            };
            return Err(ReadError::UnknownNamespace {
                resource: resource(),
                cached,
                asked,
            });
        }
    };
    match health.in_the_way() {
        Some(reason) if **reason == WatchError::Absent => Err(ReadError::Absent { resource: resource() }),
        Some(reason) => Err(ReadError::NotSynced {
            resource: resource(),
            reason: Arc::clone(reason),
        }),
        None if informer.is_ended() => Err(ReadError::NotCached { resource: resource() }),
        None => Ok(()),
    }
}
