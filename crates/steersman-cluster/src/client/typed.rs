// SPDX-License-Identifier: Apache-2.0
//! The verbs of kinds that are types.

use std::sync::Arc;

use kube::{
    api::{DeleteParams, Patch, WatchParams},
    core::DynamicObject,
};
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::{ObjectDetail, Query, Resource};
use steersman_core::ObjectKey;

use super::{Client, Deletion, Kind, KindClient, MetadataClient, Watch};
use crate::Error;

impl Client {
    /// The object of this name, or nothing if there is none.
    ///
    /// The first read of a kind starts an informer and waits until it is in sync, unless the cache was told otherwise.
    ///
    /// # Errors
    /// When cache or server have no answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get<K: Kind>(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        self.kind().get(key).await
    }

    /// The object of this name.
    ///
    /// # Errors
    /// When there is none, or cache or server have no answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get_required<K: Kind>(&self, key: &ObjectKey) -> Result<Arc<K>, Error> {
        self.kind().get_required(key).await
    }

    /// The objects that a query selects. From the cache that is quick by namespace, label and index; see [`Query`]. From
    /// the server it comes in pages.
    ///
    /// # Errors
    /// When cache or server have no answer, or one of the objects does not have the shape of a `K`.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list<K: Kind>(&self, query: &Query) -> Result<Vec<Arc<K>>, Error> {
        self.kind().list(query).await
    }

    /// The verbs about metadata alone.
    #[must_use]
    pub fn metadata<K: Kind>(&self) -> MetadataClient<K> {
        MetadataClient(self.of_as(&Resource::of::<K>(), ObjectDetail::Metadata))
    }

    /// The same for a kind that is known when the program runs.
    #[must_use]
    pub fn metadata_of(&self, resource: &Resource) -> MetadataClient<DynamicObject> {
        MetadataClient(self.of_as(resource, ObjectDetail::Metadata))
    }

    /// Creates an object and gives it as the server keeps it. A namespaced one says its namespace.
    ///
    /// # Errors
    /// When the server refuses, such as because there is one [already](Error::is_already_exists), or does not answer.
    ///
    /// # Cancel safety
    /// Dropped half-way, it may or may not have happened, and the cache does not know of it before the watch tells.
    pub async fn create<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().create(object).await
    }

    /// Replaces an object, except for its status where that is a subresource, and gives it as the server keeps it.
    ///
    /// # Errors
    /// When the server refuses, such as because the object was [changed](Error::is_conflict) meanwhile, or does not
    /// answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn update<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().update(object).await
    }

    /// Replaces the status of an object, and gives the object as the server keeps it.
    ///
    /// # Errors
    /// As with [`update`](Self::update).
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn update_status<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().update_status(object).await
    }

    /// Changes an object by a patch, and gives it as the server keeps it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn patch<K: Kind>(&self, key: &ObjectKey, patch: &Patch<impl Serialize>) -> Result<K, Error> {
        self.kind().patch(key, patch).await
    }

    /// Changes the status of an object by a patch, and gives the object as the server keeps it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn patch_status<K: Kind>(
        &self,
        key: &ObjectKey,
        patch: &Patch<impl Serialize>,
    ) -> Result<K, Error> {
        self.kind().patch_status(key, patch).await
    }

    /// Applies an object on the server's side: what it says is owned by this client's
    /// [field owner](Self::field_manager), what it said before and says no more is removed. It is created if need be.
    ///
    /// # Errors
    /// When somebody else owns a field and this client does not [force](Self::force) it, or the server refuses in
    /// another way or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn apply<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().apply(object).await
    }

    /// Applies the status of an object.
    ///
    /// # Errors
    /// As with [`apply`](Self::apply).
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn apply_status<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().apply_status(object).await
    }

    /// Deletes an object, and says whether it is gone by now.
    ///
    /// # Errors
    /// When there is [none](Error::is_not_found), or the server refuses in another way or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn delete<K: Kind>(
        &self,
        key: &ObjectKey,
        options: DeleteParams,
    ) -> Result<Deletion<K>, Error> {
        self.kind().delete(key, options).await
    }

    /// As [`delete`](Self::delete), where an object that does not exist counts as deleted.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn delete_if_exists<K: Kind>(
        &self,
        key: &ObjectKey,
        options: DeleteParams,
    ) -> Result<Deletion<K>, Error> {
        self.kind().delete_if_exists(key, options).await
    }

    /// Deletes the objects of a namespace, or those with certain labels or [fields](Self::fields) in it.
    ///
    /// # Errors
    /// When the query asks for more than a server can select by, or the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn delete_collection<K: Kind>(
        &self,
        query: &Query,
        options: DeleteParams,
    ) -> Result<(), Error> {
        self.kind::<K>().delete_collection(query, options).await
    }

    /// The events of a namespace, or of all of them as the empty name, from a resource version on. It ends when the
    /// server ends it; an informer of the [cache](crate::Cluster::cache) goes on, shares, and misses nothing.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn watch<K: Kind>(
        &self,
        namespace: &str,
        options: &WatchParams,
        from: &str,
    ) -> Result<Watch<K>, Error> {
        self.kind().watch(namespace, options, from).await
    }

    /// A subresource of an object, such as `scale`, from the server.
    ///
    /// # Errors
    /// When there is none, or the server refuses in another way or does not answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get_subresource<K: Kind, S: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        name: &str,
    ) -> Result<S, Error> {
        self.kind::<K>().get_subresource(key, name).await
    }

    /// Creates a subresource of an object, such as `eviction` or `token`.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn create_subresource<K: Kind, S: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error> {
        self.kind::<K>().create_subresource(key, name, body).await
    }

    /// Replaces a subresource of an object, such as `scale`.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn update_subresource<K: Kind, S: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error> {
        self.kind::<K>().update_subresource(key, name, body).await
    }

    /// Changes a subresource of an object by a patch.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn patch_subresource<K: Kind, S: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        name: &str,
        patch: &Patch<impl Serialize>,
    ) -> Result<S, Error> {
        self.kind::<K>().patch_subresource(key, name, patch).await
    }

    /// Applies a subresource of an object.
    ///
    /// # Errors
    /// As with [`apply`](Self::apply).
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn apply_subresource<K: Kind, S: DeserializeOwned>(
        &self,
        key: &ObjectKey,
        name: &str,
        body: &impl Serialize,
    ) -> Result<S, Error> {
        self.kind::<K>().apply_subresource(key, name, body).await
    }

    pub(super) fn kind<K: Kind>(&self) -> KindClient<K> {
        self.of_as(&Resource::of::<K>(), ObjectDetail::Whole)
    }
}
