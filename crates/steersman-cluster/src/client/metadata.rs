// SPDX-License-Identifier: Apache-2.0
//! Verbs for metadata only, which costs a fraction of whole objects.

use std::{fmt, sync::Arc};

use kube::{
    api::{DeleteParams, Patch, WatchParams},
    core::PartialObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::Query;
use steersman_core::ObjectKey;

use super::{Deletion, KindClient, ListPage, Watch};
use crate::Error;

/// Media types of the metadata of an object and of a list.
pub(super) const FORMS: [&str; 2] = [OBJECT, LIST];

const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Reads and changes the metadata of the objects of one kind; from [`Client::metadata`](crate::Client::metadata) or
/// [`Client::metadata_of`](crate::Client::metadata_of).
///
/// The cache requests only metadata from the server until a read requests whole objects of the kind.
pub struct MetadataClient<K>(pub(super) KindClient<PartialObjectMeta<K>>);

impl<K: Send + Sync + 'static> MetadataClient<K>
where
    PartialObjectMeta<K>: DeserializeOwned,
{
    /// Returns the metadata of an object, or `None` if it does not exist.
    ///
    /// # Errors
    /// When neither the cache nor the server answers.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<PartialObjectMeta<K>>>, Error> {
        self.0.get(key).await
    }

    /// Returns the metadata of the objects that a query selects.
    ///
    /// # Errors
    /// When neither the cache nor the server answers.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list(&self, query: &Query) -> Result<Vec<Arc<PartialObjectMeta<K>>>, Error> {
        self.0.list(query).await
    }

    /// As [`Client::list_page`](crate::Client::list_page), with the metadata of the objects.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list_page(
        &self,
        query: &Query,
        continue_token: Option<&str>,
    ) -> Result<ListPage<PartialObjectMeta<K>>, Error> {
        self.0.list_page(query, continue_token).await
    }

    /// Watches the metadata of a namespace, or of all namespaces if the name is empty; see
    /// [`Client::watch`](crate::Client::watch).
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn watch(
        &self,
        namespace: &str,
        options: &WatchParams,
        from: &str,
    ) -> Result<Watch<PartialObjectMeta<K>>, Error> {
        self.0.watch_as(OBJECT, namespace, options, from).await
    }

    /// Patches an object, for example its labels, and returns the stored metadata.
    ///
    /// # Errors
    /// When the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// As with [`Client::create`](crate::Client::create).
    pub async fn patch(
        &self,
        key: &ObjectKey,
        patch: &Patch<impl Serialize>,
    ) -> Result<PartialObjectMeta<K>, Error> {
        // The answer is the whole object, so that the cache can store it.
        self.0.patch(key, patch).await
    }

    /// Deletes an object and reports whether the deletion is complete.
    ///
    /// # Errors
    /// When the object [does not exist](Error::is_not_found), or the server rejects the request or does not answer.
    ///
    /// # Cancel safety
    /// As with [`Client::create`](crate::Client::create).
    pub async fn delete(
        &self,
        key: &ObjectKey,
        options: DeleteParams,
    ) -> Result<Deletion<PartialObjectMeta<K>>, Error> {
        self.0.delete(key, options).await
    }
}

impl<K> Clone for MetadataClient<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> fmt::Debug for MetadataClient<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MetadataClient").field(&self.0).finish()
    }
}
