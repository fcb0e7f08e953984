// SPDX-License-Identifier: Apache-2.0
//! Typed reads through a cache.

use std::{sync::Arc, time::Duration};

use kube::Resource as KubeResource;
use serde::de::DeserializeOwned;

use super::{
    Cache, InformerHandle, ReadScopes, View,
    handle::RefCount,
    live,
    read_scopes::{ByResource, Opened},
};
use crate::{DecodeError, Informer, Query, Resource, Revision, Scope, WatchError};

/// Behaviour of a read whose kind has no informer. Default: [`Start`](Self::Start).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheMissPolicy {
    /// Starts an informer and waits until it is in sync.
    #[default]
    Start,
    /// Reads from the API server.
    Live,
    /// Returns [`ReadError::NotCached`].
    Refuse,
}

/// Reads typed objects through a cache.
///
/// Informers that its reads start belong to it and to the readers derived from it. They end some time after the last of these
/// readers is dropped.
///
/// # Scopes
/// A read covers the objects in the [scopes](ReadScopes) of its reader. If these do not name the resource, a read covers the
/// configured scope of the cache. A read does not find an object that a label or field selector leaves out. A namespace that
/// no scope contains is an [error](ReadError::UnknownNamespace). A list without a namespace covers all namespaces of the
/// scopes, after all of them are in sync. To read in another scope, use [`in_scope`](Self::in_scope).
#[derive(Debug)]
pub struct Reader {
    cache: Cache,
    missing: CacheMissPolicy,
    /// Scopes of the resources that are not read in the configured scope.
    scopes: ByResource<Vec<Option<Scope>>>,
    opened: Arc<Opened>,
}

/// Part of each object that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "an API server knows these two")]
pub enum ObjectDetail {
    /// The whole object.
    Full,
    /// Only its metadata. An informer of whole objects provides it too.
    Metadata,
}

/// A cached read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The kind has no informer and the reader does not start one, or the informer was removed during the read.
    #[error("{resource} is not cached; watch it, or let the reader start an informer or read live")]
    NotCached {
        /// The kind that was asked for.
        resource: Resource,
    },
    /// The server does not have the kind. Each read checks again, and leaves no informer behind.
    #[error("the server does not have {resource}")]
    Absent {
        /// The kind that was asked for.
        resource: Resource,
    },
    /// The informer is not in sync, so its store can be incomplete.
    #[error("{resource} is not in sync: {reason}")]
    NotSynced {
        /// The kind that was asked for.
        resource: Resource,
        /// The cause.
        reason: Arc<WatchError>,
    },
    /// The [scopes](ReadScopes) of the reader declare only the metadata of the kind. A read of whole objects would make the
    /// informer fetch and keep all of each object.
    #[error(
        "only the metadata of {resource} is watched; read it with `Client::metadata`, watch whole objects, or read live"
    )]
    MetadataOnly {
        /// The kind that was asked for.
        resource: Resource,
    },
    /// The scope of the cache does not contain the namespace.
    #[error("{resource} is cached in namespace {cached} only, not in {asked}")]
    UnknownNamespace {
        /// The kind that was asked for.
        resource: Resource,
        /// The cached namespaces, comma-separated.
        cached: String,
        /// The namespace that was asked for.
        asked: String,
    },
    /// The cache did not reach a revision in time; see [`Reader::reached`].
    #[error(
        "{resource} did not reach revision {revision} in the cache within {limit:?}; check the watch, or wait longer"
    )]
    NotReached {
        /// The kind that was asked for.
        resource: Resource,
        /// The revision.
        revision: Revision,
        /// The timeout.
        limit: Duration,
    },
    /// The object does not match the type.
    #[error(transparent)]
    Decode(DecodeError),
    /// A read from the API server failed.
    #[error("cannot read {resource} from the server")]
    Live {
        /// The kind that was asked for.
        resource: Resource,
        /// The cause.
        #[source]
        source: WatchError,
    },
}

impl ReadError {
    fn of_live(resource: Resource, source: WatchError) -> Self {
        match source {
            WatchError::NotInstalled => Self::Absent { resource },
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

    /// Returns a reader that reads a resource in this scope. It shares informers with this reader.
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

    /// Returns the informers that its reads have opened. The flag is true if its [scopes](ReadScopes) declare the informer.
    #[must_use]
    pub fn opened(&self) -> Vec<(InformerHandle, bool)> {
        self.opened.all(&self.cache)
    }

    /// Gets the object of this name, or `None` if it does not exist. Pass an empty namespace for a cluster-scoped kind.
    ///
    /// # Errors
    /// See [`ReadError`].
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
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
        let found = match self.view(&resource, namespace, ObjectDetail::Full).await? {
            Some(view) => view.get(namespace, name),
            None => live::get(self.cache.context(), &resource, namespace, name)
                .await
                .map_err(|source| ReadError::of_live(resource, source))?,
        };
        found
            .map(|object| object.decoded::<K>())
            .transpose()
            .map_err(ReadError::Decode)
    }

    /// Lists the objects that `query` selects.
    ///
    /// # Errors
    /// See [`ReadError`]. One object that does not match `K` fails the list.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
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
        let objects = match self.view(&resource, namespace, ObjectDetail::Full).await? {
            Some(view) => view.list(query),
            None => live::list(self.cache.context(), &resource, query)
                .await
                .map_err(|source| ReadError::of_live(resource, source))?,
        };
        objects
            .iter()
            .map(|object| object.decoded::<K>())
            .collect::<Result<_, _>>()
            .map_err(ReadError::Decode)
    }

    /// Returns a view of a resource in a namespace; an empty name means all namespaces. The view includes
    /// [writes](Cache::wrote) that the watch has not delivered yet. `None` means: read from the API server.
    ///
    /// # Errors
    /// See [`ReadError`].
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
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
                // Nearly every read finds an open informer that is in sync.
                if let Some(store) = self.opened.readable(resource, scope, wanted, namespace) {
                    return Ok(Some(View::of(store)));
                }
                let informer = self.in_sync(resource, scope, namespace, wanted).await?;
                return Ok(informer.map(|informer| View::of(informer.store().with_writes())));
            }
        };
        let (mut stores, mut outside) = (Vec::new(), None);
        for scope in scopes {
            match self.in_sync(resource, scope.as_ref(), namespace, wanted).await {
                Ok(Some(informer)) => {
                    stores.push((informer.scope().whole(), informer.store().with_writes()));
                }
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

    /// Waits until the cached objects of a namespace include all changes up to this revision; an empty name means all
    /// namespaces. Starts an informer like a read. Returns at once if reads query the API server.
    ///
    /// The watch delivers changes of its own objects immediately. It reaches a revision of other objects with the next bookmark
    /// of the server, about once a minute.
    ///
    /// # Errors
    /// See [`ReadError`]. It has no timeout: the caller sets one.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn reached(
        &self,
        resource: &Resource,
        namespace: &str,
        wanted: ObjectDetail,
        revision: &Revision,
    ) -> Result<(), ReadError> {
        let configured = [None];
        let scopes = self.scopes.get(resource).map_or(&configured[..], Vec::as_slice);
        let (mut found, mut outside) = (false, None);
        for scope in scopes {
            match self.in_sync(resource, scope.as_ref(), namespace, wanted).await {
                Ok(Some(informer)) => {
                    found = true;
                    tokio::select! {
                        biased;
                        () = informer.store().reached(namespace, revision) => {}
                        () = informer.ended() => {
                            return Err(ReadError::NotCached { resource: resource.clone() });
                        }
                    }
                }
                Ok(None) => return Ok(()),
                Err(error @ ReadError::UnknownNamespace { .. }) => outside = Some(error),
                Err(error) => return Err(error),
            }
        }
        outside.filter(|_| !found).map_or(Ok(()), Err)
    }

    /// Returns the informer of one scope, after it is in sync for a namespace.
    async fn in_sync(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        namespace: &str,
        wanted: ObjectDetail,
    ) -> Result<Option<Informer>, ReadError> {
        let Some((informer, share)) = self.informer(resource, scope, wanted)? else {
            return Ok(None);
        };
        match ready(&informer, namespace).await {
            Ok(()) => Ok(Some(informer)),
            Err(error) => {
                if let (ReadError::Absent { .. }, Some(share)) = (&error, share) {
                    drop(informer);
                    self.let_go(resource, share);
                }
                Err(error)
            }
        }
    }

    /// Releases the informer of an absent kind, which would list again and again. An informer with other handles continues.
    fn let_go(&self, resource: &Resource, share: Arc<RefCount>) {
        self.opened.remove(resource, &share);
        drop(share);
        self.cache.end_idle(resource);
    }

    /// Returns the informer to read from, or `None` to read from the API server. A reader that starts informers holds handles to
    /// the informers that it reads from. A reader that must not start informers holds none, since a handle would keep them alive.
    fn informer(
        &self,
        resource: &Resource,
        scope: Option<&Scope>,
        wanted: ObjectDetail,
    ) -> Result<Option<Read>, ReadError> {
        if self.missing != CacheMissPolicy::Start {
            let running = self.cache.running(resource, scope, wanted);
            return match (running, self.missing) {
                (Some(informer), _) => Ok(Some((informer, None))),
                (None, _) if self.cache.is_absent(resource) => Err(ReadError::Absent {
                    resource: resource.clone(),
                }),
                (None, CacheMissPolicy::Live) => Ok(None),
                (None, _) => Err(ReadError::NotCached {
                    resource: resource.clone(),
                }),
            };
        }
        if let Some((informer, ref_count)) = self.opened.get(resource, scope, wanted) {
            return Ok(Some((informer, Some(ref_count))));
        }
        if wanted == ObjectDetail::Full && self.opened.is_metadata_only(resource, scope) {
            return Err(ReadError::MetadataOnly {
                resource: resource.clone(),
            });
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
        Ok(Some((held.informer, Some(held.ref_count))))
    }
}

/// The informer to read from, and the reader's lease on it, if it has one.
type Read = (Informer, Option<Arc<RefCount>>);

/// Waits until the informer is in sync for this namespace, or fails for it. Other namespaces do not matter.
async fn ready(informer: &Informer, namespace: &str) -> Result<(), ReadError> {
    let resource = || informer.resource().clone();
    let in_the_way = match informer.settled_in(namespace).await {
        Ok(error) => error,
        Err(scope) => {
            let cached = scope.parts().into_iter().collect::<Vec<_>>().join(", ");
            return Err(ReadError::UnknownNamespace {
                resource: resource(),
                cached,
                asked: namespace.to_owned(),
            });
        }
    };
    match in_the_way {
        Some(reason) if *reason == WatchError::NotInstalled => {
            Err(ReadError::Absent { resource: resource() })
        }
        Some(reason) => Err(ReadError::NotSynced {
            resource: resource(),
            reason,
        }),
        None if informer.is_ended() => Err(ReadError::NotCached { resource: resource() }),
        None => Ok(()),
    }
}
