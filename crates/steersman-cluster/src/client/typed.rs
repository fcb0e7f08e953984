// SPDX-License-Identifier: Apache-2.0
//! Verbs for kinds that are Rust types.

use std::sync::Arc;

use kube::{
    api::{DeleteParams, Patch, WatchParams},
    core::DynamicObject,
};
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::{ObjectDetail, Query, Resource};
use steersman_core::ObjectKey;

use super::{Client, Deletion, Kind, KindClient, ListPage, MetadataClient, Watch};
use crate::Error;

impl Client {
    /// Returns the object with this key, or `None` if it does not exist.
    ///
    /// The first read of a kind starts an informer and waits until it is in sync, unless the cache is configured
    /// otherwise.
    ///
    /// # Errors
    /// When neither the cache nor the server answers.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get<K: Kind>(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, Error> {
        self.kind().get(key).await
    }

    /// Returns the object with this key.
    ///
    /// # Errors
    /// When it does not exist, or neither the cache nor the server answers.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get_required<K: Kind>(&self, key: &ObjectKey) -> Result<Arc<K>, Error> {
        self.kind().get_required(key).await
    }

    /// Returns the objects that a query selects. The cache finds them quickly by namespace, label and index; see
    /// [`Query`]. The server returns them in pages.
    ///
    /// # Errors
    /// When neither the cache nor the server answers, or one of the objects cannot be decoded as `K`.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list<K: Kind>(&self, query: &Query) -> Result<Vec<Arc<K>>, Error> {
        self.kind().list(query).await
    }

    /// Returns one page of a list with its metadata, from the server. The query selects by namespace and labels; its
    /// [limit](Query::limit) is the size of the page. Default: 500 objects; zero lists all objects in one answer.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_cache::Query;
    /// # async fn example(client: steersman_cluster::Client) -> Result<(), steersman_cluster::Error> {
    /// let query = Query::new().namespace("web").limit(100);
    /// let mut page = client.list_page::<ConfigMap>(&query, None).await?;
    /// while let Some(token) = &page.continue_token {
    ///     page = client.list_page::<ConfigMap>(&query, Some(token)).await?;
    /// }
    /// println!("listed at {}", page.resource_version);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the token has [expired](Error::is_expired), the query has an index, one of the objects cannot be decoded as `K`,
    /// or the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list_page<K: Kind>(
        &self,
        query: &Query,
        continue_token: Option<&str>,
    ) -> Result<ListPage<K>, Error> {
        self.kind().list_page(query, continue_token).await
    }

    /// Waits until the cached objects of a kind in this namespace include all changes up to a resource version. An empty name
    /// means all namespaces. Use it for changes that the cache does not see as writes: writes through another version of the
    /// kind, through [`kube`](Self::kube), or by another process that reports the resource version.
    ///
    /// It starts an informer like a read, and returns at once if reads of this client query the server. It waits for the
    /// [timeout](Self::timeout) of this client. The watch delivers changes of its own objects immediately. It reaches the
    /// resource version of another kind with the next bookmark of the server, about once a minute.
    ///
    /// # Errors
    /// When the cache does not reach it [in time](Error::is_timeout), or cannot answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn wait_for_revision<K: Kind>(
        &self,
        namespace: &str,
        resource_version: &str,
    ) -> Result<(), Error> {
        self.kind::<K>()
            .wait_for_revision(namespace, resource_version)
            .await
    }

    /// Returns a client for the metadata of a kind.
    #[must_use]
    pub fn metadata<K: Kind>(&self) -> MetadataClient<K> {
        MetadataClient(self.of_as(&Resource::of::<K>(), ObjectDetail::Metadata))
    }

    /// Like [`metadata`](Self::metadata), for a kind that is known at run time.
    #[must_use]
    pub fn metadata_of(&self, resource: &Resource) -> MetadataClient<DynamicObject> {
        MetadataClient(self.of_as(resource, ObjectDetail::Metadata))
    }

    /// Creates an object and returns it as stored by the server. A namespaced object must have its namespace set.
    ///
    /// # Errors
    /// When the server rejects it, for example because it [exists](Error::is_already_exists), or does not answer.
    ///
    /// # Cancel safety
    /// If dropped midway, the outcome of the write is unknown, and the cache does not show it before the watch does.
    pub async fn create<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().create(object).await
    }

    /// Replaces an object and returns it as stored by the server. The status is not replaced if it is a subresource.
    ///
    /// # Errors
    /// When the server rejects it, for example because another client [changed](Error::is_conflict) the object, or does
    /// not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn update<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().update(object).await
    }

    /// Replaces the status of an object and returns the object as stored by the server.
    ///
    /// # Errors
    /// As with [`update`](Self::update).
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn update_status<K: Kind + Serialize>(&self, object: &K) -> Result<K, Error> {
        self.kind().update_status(object).await
    }

    /// Patches an object and returns it as stored by the server.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn patch<K: Kind>(&self, key: &ObjectKey, patch: &Patch<impl Serialize>) -> Result<K, Error> {
        self.kind().patch(key, patch).await
    }

    /// Patches the status of an object and returns the object as stored by the server.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
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

    /// Applies an object with server-side apply, and creates it if it does not exist. This client's [field
    /// manager](Self::field_manager) owns the fields of the object. Fields that an earlier apply set and this one omits
    /// are removed.
    ///
    /// # Errors
    /// When another field manager owns a field and this client does not [force](Self::force) it, or the server rejects
    /// the request for another reason or does not answer.
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

    /// Deletes an object and reports whether the deletion is complete.
    ///
    /// # Errors
    /// When the object [does not exist](Error::is_not_found), or the server rejects the request or does not answer.
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

    /// Like [`delete`](Self::delete), but an object that does not exist counts as deleted.
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

    /// Deletes the objects of a namespace that a query selects by labels or [fields](Self::fields).
    ///
    /// # Errors
    /// When the server cannot evaluate the query, or the server rejects the request or does not answer.
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

    /// Watches a namespace, or all namespaces if the name is empty, from a resource version on. The stream ends when
    /// the server closes the watch. An informer of the [cache](crate::Cluster::cache) resumes the watch, is shared, and
    /// misses nothing.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
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

    /// Reads a subresource of an object, such as `scale`, from the server.
    ///
    /// # Errors
    /// When it does not exist, or the server rejects the request or does not answer.
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
    /// When the server rejects the request or does not answer.
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
    /// When the server rejects the request or does not answer.
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

    /// Patches a subresource of an object.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
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
        self.of_as(&Resource::of::<K>(), ObjectDetail::Full)
    }
}
