// SPDX-License-Identifier: Apache-2.0
//! Reads of metadata alone, which costs a fraction of whole objects.

use std::{fmt, sync::Arc};

use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use steersman_cache::{Query, ReadError, Wanted};
use steersman_core::ObjectKey;

use super::{KindClient, answer, kind::unreadable};
use crate::Error;

const OBJECT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Reads the metadata of the objects of one kind; from [`Client::metadata`](crate::Client::metadata).
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
        let (call, client) = (|| self.0.on("get", key), &self.0.client);
        let view = client.view(&self.0.resource, key.namespace(), Wanted::Metadata, call);
        if let Some(store) = view.await? {
            let found = store.get_as(key.namespace(), key.name());
            return found.map_err(|error| unreadable(&call(), ReadError::Decode(error)));
        }
        let call = call();
        let found = client.get_live(&call, OBJECT).await?;
        let decoded = found.map(|json| answer::decode(&call, &json)).transpose()?;
        Ok(decoded.map(Arc::new))
    }

    /// The metadata of the objects that a query selects.
    ///
    /// # Errors
    /// When cache or server have no answer.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn list(&self, query: &Query) -> Result<Vec<Arc<PartialObjectMeta<K>>>, Error> {
        let (call, client) = (|| self.0.within("list", query), &self.0.client);
        let namespace = query.wanted_namespace().unwrap_or_default();
        let view = client.view(&self.0.resource, namespace, Wanted::Metadata, call);
        if let Some(store) = view.await? {
            let found: Result<_, _> = store.list_as(query).collect();
            return found.map_err(|error| unreadable(&call(), ReadError::Decode(error)));
        }
        client.list_live(&call(), query, LIST).await
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
