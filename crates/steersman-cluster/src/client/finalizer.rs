// SPDX-License-Identifier: Apache-2.0
//! Adds and removes finalizers without writing other fields of an object.
//!
//! # Guarantees
//! 1. A change of the list by another client is never overwritten: each patch tests the whole list that it replaces.
//! 2. Concurrent writes to other parts of the object, such as its status, do not make the change fail.
//! 3. An object of the same name with another uid is not changed.
//! 4. Fields that the Rust type does not have are kept: the patch contains only the list.

use kube::{
    api::Patch,
    core::{ObjectMeta, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use steersman_cache::ObjectDetail;
use steersman_core::ObjectKey;

use super::{CONFLICT_TRIES, Client, Kind, KindClient};
use crate::{Error, ObjectExt};

impl<K: kube::Resource + DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::add_finalizer`].
    ///
    /// # Errors
    /// As there.
    pub async fn add_finalizer(&self, object: &K, finalizer: &str) -> Result<(), Error> {
        let key = object.key();
        let has_changed = self
            .change_finalizers(&key, object.meta(), |held| {
                let is_held = held.iter().any(|held| held == finalizer);
                (!is_held).then(|| held.iter().cloned().chain([finalizer.to_owned()]).collect())
            })
            .await?;
        match has_changed {
            Some(()) => Ok(()),
            None => Err(Error::NotFound {
                call: Box::new(self.on("add a finalizer to", &key)),
            }),
        }
    }

    /// As [`Client::remove_finalizer`].
    ///
    /// # Errors
    /// As there.
    pub async fn remove_finalizer(&self, object: &K, finalizer: &str) -> Result<(), Error> {
        let key = object.key();
        self.change_finalizers(&key, object.meta(), |held| {
            let is_held = held.iter().any(|held| held == finalizer);
            is_held.then(|| held.iter().filter(|held| *held != finalizer).cloned().collect())
        })
        .await?;
        Ok(())
    }

    /// Replaces the list with the result of `change`, unless that is `None`. Returns `None` if the object does not
    /// exist.
    async fn change_finalizers(
        &self,
        key: &ObjectKey,
        metadata: &ObjectMeta,
        change: impl Fn(&[String]) -> Option<Vec<String>>,
    ) -> Result<Option<()>, Error> {
        let uid = metadata.uid.clone().unwrap_or_default();
        let mut held = metadata.finalizers.clone().unwrap_or_default();
        let mut tries = CONFLICT_TRIES;
        loop {
            let Some(wanted) = change(&held) else {
                return Ok(Some(()));
            };
            let error = match self.patch_finalizers(key, &uid, &held, &wanted).await {
                Ok(()) => return Ok(Some(())),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => error,
            };
            // The server answers a failed test with the same status as an invalid object.
            tries -= 1;
            if tries == 0 || !(error.is_invalid() || error.is_conflict()) {
                return Err(error);
            }
            let Some(now) = self.live_metadata(key).await? else {
                return Ok(None);
            };
            if now.uid.as_deref() != Some(&uid) {
                return Ok(None);
            }
            let now = now.finalizers.unwrap_or_default();
            if now == held {
                // The test did not fail: the server rejects the finalizer.
                return Err(error);
            }
            held = now;
        }
    }

    async fn patch_finalizers(
        &self,
        key: &ObjectKey,
        uid: &str,
        held: &[String],
        wanted: &[String],
    ) -> Result<(), Error> {
        // For the server an absent list equals null.
        let or_null = |list: &[String]| match list.is_empty() {
            true => Value::Null,
            false => json!(list),
        };
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/finalizers", "value": or_null(held)},
            {"op": "add", "path": "/metadata/finalizers", "value": or_null(wanted)},
        ]);
        let patch = serde_json::from_value(patch).expect("these are operations of a JSON patch");
        let call = self.on("patch", key);
        let _: PartialObjectMeta<K> = self.patched(&call, &Patch::Json::<()>(patch)).await?;
        Ok(())
    }

    async fn live_metadata(&self, key: &ObjectKey) -> Result<Option<ObjectMeta>, Error> {
        let client: KindClient<PartialObjectMeta<K>> =
            self.client.newest().of_as(&self.resource, ObjectDetail::Metadata);
        let found = client.get(key).await?;
        Ok(found.map(|found| found.metadata.clone()))
    }
}

impl Client {
    /// Adds a finalizer to an object that was read, unless the object has it. Nothing else of the object is written.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # async fn example(client: steersman_cluster::Client, map: &ConfigMap) -> Result<(), steersman_cluster::Error> {
    /// client.add_finalizer(map, "example.com/cleanup").await?;
    /// // … and once everything outside of the cluster is cleaned up:
    /// client.remove_finalizer(map, "example.com/cleanup").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the object [does not exist](Error::is_not_found) any more, or the server rejects the patch. The server adds
    /// no finalizer to an object that is being deleted.
    ///
    /// # Cancel safety
    /// As with [`Client::create`].
    pub async fn add_finalizer<K: Kind>(&self, object: &K, finalizer: &str) -> Result<(), Error> {
        self.kind().add_finalizer(object, finalizer).await
    }

    /// Removes a finalizer from an object that was read, so that its deletion can finish. Does nothing if the object
    /// does not have it, or does not exist any more. Nothing else of the object is written.
    ///
    /// # Errors
    /// When the server rejects the patch or does not answer.
    ///
    /// # Cancel safety
    /// As with [`Client::create`].
    pub async fn remove_finalizer<K: Kind>(&self, object: &K, finalizer: &str) -> Result<(), Error> {
        self.kind().remove_finalizer(object, finalizer).await
    }
}
