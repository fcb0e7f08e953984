// SPDX-License-Identifier: Apache-2.0
//! Creates an object, or changes the existing one.
//!
//! # Guarantees
//! 1. An object that is as wanted causes no write.
//! 2. A change by another client is never overwritten: each patch names the resource version that it is based on. After
//!    a conflict the closure runs again, on the newest state.
//! 3. An object that exists but that the cache does not show, because it is stale or has a selector, is updated.
//! 4. Fields that the Rust type does not have are kept: the patch contains only the fields that the closure changed.

use std::sync::Arc;

use kube::{api::Patch, core::ObjectMeta};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tower::BoxError;

use super::{CONFLICT_TRIES, Client, Kind, KindClient, kind::unwritable, request::invalid};
use crate::{Error, ObjectExt};

/// Result of [`Client::create_or_update`], with the object as stored by the server.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an object was created, was updated, or was as wanted"
)]
pub enum OperationResult<K> {
    /// The object did not exist and was created.
    Created(Arc<K>),
    /// The object existed and was changed.
    Updated(Arc<K>),
    /// The object is as wanted. No write was sent.
    Unchanged(Arc<K>),
}

impl<K> OperationResult<K> {
    /// Returns the object.
    #[must_use]
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Created(object) | Self::Updated(object) | Self::Unchanged(object) => object,
        }
    }
}

impl<K> KindClient<K>
where
    K: kube::Resource + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    /// As [`Client::create_or_update`].
    ///
    /// # Errors
    /// As there.
    pub async fn create_or_update(
        &self,
        object: K,
        mut change: impl FnMut(&mut K) -> Result<(), BoxError>,
    ) -> Result<OperationResult<K>, Error> {
        let key = object.key();
        let mut current = self.get(&key).await?;
        let mut tries = CONFLICT_TRIES;
        loop {
            let mut wanted = K::clone(current.as_deref().unwrap_or(&object));
            change(&mut wanted).map_err(|source| Error::Change {
                call: Box::new(self.on("create or update", &key)),
                source,
            })?;
            if wanted.key() != key {
                let call = self.on("create or update", &key);
                return Err(invalid(&call, "the closure changed its name or namespace"));
            }
            let result = match &current {
                None => self
                    .create(&wanted)
                    .await
                    .map(Arc::new)
                    .map(OperationResult::Created),
                Some(held) => self.patch_changes(held, wanted).await,
            };
            let is_outdated = |error: &Error| {
                let is_gone = current.is_some() && error.is_not_found() && !error.is_absent();
                is_gone || error.is_conflict() || error.is_already_exists()
            };
            tries -= 1;
            if tries == 0 || !result.as_ref().is_err_and(is_outdated) {
                return result;
            }
            let newest = Self::new(self.client.newest(), self.resource.clone(), self.wanted);
            current = newest.get(&key).await?;
        }
    }

    /// Sends the difference between an object as it was read and as it is wanted.
    async fn patch_changes(&self, held: &Arc<K>, mut wanted: K) -> Result<OperationResult<K>, Error> {
        keep_server_fields(wanted.meta_mut(), held.meta());
        let call = self.on("patch", &wanted.key());
        let encode = |object: &K| serde_json::to_value(object).map_err(|source| unwritable(&call, source));
        let Some(mut patch) = merge_patch(&encode(held)?, &encode(&wanted)?) else {
            return Ok(OperationResult::Unchanged(Arc::clone(held)));
        };
        if let Some(version) = &held.meta().resource_version {
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        let patched = self.patched(&call, &Patch::Merge(patch)).await?;
        Ok(OperationResult::Updated(Arc::new(patched)))
    }
}

/// Restores the metadata that only the server sets, for closures that replace the metadata.
fn keep_server_fields(wanted: &mut ObjectMeta, held: &ObjectMeta) {
    wanted.uid.clone_from(&held.uid);
    wanted.resource_version.clone_from(&held.resource_version);
    wanted.generation = held.generation;
    wanted.creation_timestamp.clone_from(&held.creation_timestamp);
    wanted.deletion_timestamp.clone_from(&held.deletion_timestamp);
    wanted.deletion_grace_period_seconds = held.deletion_grace_period_seconds;
    wanted.managed_fields.clone_from(&held.managed_fields);
}

/// Returns the JSON merge patch from one value to another, or `None` if they are equal.
fn merge_patch(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (name, value) in after {
        let change = match before.get(name) {
            Some(former) => merge_patch(former, value),
            None => Some(value.clone()),
        };
        patch.extend(change.map(|change| (name.clone(), change)));
    }
    let removed = before.keys().filter(|name| !after.contains_key(*name));
    patch.extend(removed.map(|name| (name.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

impl Client {
    /// Reads an object, changes it with a closure, and writes the difference. If the object does not exist, creates
    /// `object` with the same change.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    /// # use steersman_cluster::{Client, Error, ObjectExt, OperationResult};
    /// # async fn example(client: Client, owner: &Pod) -> Result<(), Error> {
    /// let map = ConfigMap { metadata: owner.child_metadata("settings"), ..ConfigMap::default() };
    /// let result = client
    ///     .create_or_update(map, |map| {
    ///         map.set_controller_reference(owner)?;
    ///         let data = map.data.get_or_insert_default();
    ///         data.insert("mode".to_owned(), "fast".to_owned());
    ///         Ok(())
    ///     })
    ///     .await?;
    /// if let OperationResult::Created(map) = result {
    ///     println!("created {}", map.key());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The read uses the cache, unless this client is [live](Self::live). After a conflict, and for an object that the
    /// cache does not show although it exists, the closure runs again on the newest state: it can run up to ten times, and must
    /// have no other effects.
    ///
    /// Set single fields in the closure. Replacing a whole `spec` also removes the defaults that the server has set, so
    /// that every call sends a patch; use [`apply`](Self::apply) for that. A list that has changed is sent as a whole. The
    /// status is not written if it is a subresource; use [`update_status`](Self::update_status).
    ///
    /// # Errors
    /// When the closure returns an error, the server rejects the write or does not answer, or other clients change the
    /// object each time before the write arrives.
    ///
    /// # Cancel safety
    /// As with [`create`](Self::create).
    pub async fn create_or_update<K: Kind + Clone + Serialize>(
        &self,
        object: K,
        change: impl FnMut(&mut K) -> Result<(), BoxError>,
    ) -> Result<OperationResult<K>, Error> {
        self.kind().create_or_update(object, change).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_contains_only_changed_fields() {
        let before = json!({"a": 1, "b": {"c": 1, "d": 2}, "list": [1, {"x": 1}], "gone": 1});
        for (after, expected) in [
            (before.clone(), None),
            (
                json!({"a": 1, "b": {"c": 1, "d": 3}, "list": [1, {"x": 1}], "gone": 1}),
                Some(json!({"b": {"d": 3}})),
            ),
            (
                json!({"a": {"new": {}}, "b": {"c": 1, "d": 2}, "list": [1]}),
                Some(json!({"a": {"new": {}}, "list": [1], "gone": null})),
            ),
        ] {
            assert_eq!(merge_patch(&before, &after), expected);
        }
    }
}
