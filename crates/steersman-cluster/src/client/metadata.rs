// SPDX-License-Identifier: Apache-2.0
//! The verbs about metadata alone, which costs a fraction of whole objects.

use std::{fmt, sync::Arc};

use kube::{
    api::{DeleteParams, Patch, WatchParams},
    core::PartialObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::Query;
use steersman_core::ObjectKey;

use super::{Deletion, KindClient, Watch};
use crate::Error;

/// The media types of the metadata of an object and of a list.
pub(super) const FORMS: [&str; 2] = [OBJECT, LIST];

const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Reads and changes the metadata of the objects of one kind; from [`Client::metadata`](crate::Client::metadata) or
/// [`Client::metadata_of`](crate::Client::metadata_of).
///
/// The cache asks the server for the metadata alone, as long as nobody reads whole objects of the kind.
pub struct MetadataClient<K>(pub(super) KindClient<PartialObjectMeta<K>>);

impl<K: Send + Sync + 'static> MetadataClient<K>
where
    PartialObjectMeta<K>: DeserializeOwned,
{
    /// The metadata of an object, or nothing if there is none.
    ///
    /// # Errors
    /// When cache or server have no answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<PartialObjectMeta<K>>>, Error> {
        self.0.get(key).await
    }

    /// The metadata of the objects that a query selects.
    ///
    /// # Errors
    /// When cache or server have no answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list(&self, query: &Query) -> Result<Vec<Arc<PartialObjectMeta<K>>>, Error> {
        self.0.list(query).await
    }

    /// The events of a namespace, or of all of them as the empty name; see [`Client::watch`](crate::Client::watch).
    ///
    /// # Errors
    /// When the server refuses or does not answer.
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

    /// Changes an object by a patch, such as its labels, and gives its metadata as the server keeps it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    ///
    /// # Cancel safety
    /// As with [`Client::create`](crate::Client::create).
    pub async fn patch(
        &self,
        key: &ObjectKey,
        patch: &Patch<impl Serialize>,
    ) -> Result<PartialObjectMeta<K>, Error> {
        // The answer is the whole object: the cache is to see that.
        self.0.patch(key, patch).await
    }

    /// Deletes an object, and says whether it is gone by now.
    ///
    /// # Errors
    /// When there is [none](Error::is_not_found), or the server refuses in another way or does not answer.
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
