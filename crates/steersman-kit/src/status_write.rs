// SPDX-License-Identifier: Apache-2.0
//! Writes of a status. Each stage is usable with every reconciler.
//!
//! # Guarantees
//! 1. Nothing is sent if the status does not differ.
//! 2. Only the status subresource is written: changes of spec and metadata are never sent.
//! 3. [`apply_status`] owns only the fields that it sends, so that several controllers share a status without conflicts.
//! 4. An object that replaced the reconciled one does not keep its status.
//! 5. [`update_status`] repeats the change on the newest object after a conflict, unless the generation changed.

use kube::api::Patch;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cache::{ObjectDetail, Resource};
use steersman_cluster::{Client, Error, ObjectExt};
use steersman_runtime::KnownKind;

use crate::ChildKind;

/// Result of writing a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusWrite {
    /// The status was as desired; nothing was sent.
    Unchanged,
    /// The status was written.
    Written,
    /// The status was written, for a generation that is not the newest: reconcile again.
    WrittenForOldGeneration,
    /// The spec changed meanwhile, and nothing was written: reconcile again.
    Outdated,
    /// The object does not exist any more.
    Gone,
}

/// After this many changes by other clients, [`update_status`] returns the conflict.
const TRIES: u32 = 10;

/// Applies `after` as the status of an object by server-side apply, if it differs from `before`. The client's field manager owns
/// the fields of `after`, and takes them over from others.
///
/// # Errors
/// When the server rejects the request or does not answer.
///
/// # Cancel safety
/// If dropped midway, the outcome of the write is unknown.
pub async fn apply_status<K: KnownKind>(
    client: &Client,
    object: &K,
    before: &impl Serialize,
    after: &impl Serialize,
) -> Result<StatusWrite, StatusError> {
    if serde_json::to_vec(before)? == serde_json::to_vec(after)? {
        return Ok(StatusWrite::Unchanged);
    }
    // Maps can have another order.
    let (before, after) = (encoded(before)?, encoded(after)?);
    if before == after {
        return Ok(StatusWrite::Unchanged);
    }
    let (resource, metadata) = (Resource::of::<K>(), object.meta());
    let mut body = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind(),
        "metadata": {"name": metadata.name, "uid": metadata.uid},
        "status": after,
    });
    if let Some(namespace) = &metadata.namespace {
        body["metadata"]["namespace"] = json!(namespace);
    }
    let values = client.force().of_as::<Value>(&resource, ObjectDetail::Full);
    let answer = match values.patch_status(&object.key(), &Patch::Apply(&body)).await {
        Ok(answer) => answer,
        // Without a resourceVersion, the only conflict is that of the uid: another object has the name now.
        Err(error) if error.is_conflict() || is_gone(&error) => return Ok(StatusWrite::Gone),
        Err(error) => return Err(error.into()),
    };
    let written_to = answer.pointer("/metadata/uid").and_then(Value::as_str);
    if written_to != metadata.uid.as_deref() {
        // For custom resources, the server ignores a uid in the body of a status. So another object of the name got this one;
        // an empty status gives up all its fields.
        body["metadata"]["uid"] = json!(written_to);
        body["status"] = json!({});
        values.patch_status(&object.key(), &Patch::Apply(&body)).await?;
        return Ok(StatusWrite::Gone);
    }
    let newest = answer.pointer("/metadata/generation").and_then(Value::as_i64);
    Ok(match newest > metadata.generation {
        true => StatusWrite::WrittenForOldGeneration,
        false => StatusWrite::Written,
    })
}

/// Changes the status of an object and replaces it by PUT. Use it where server-side apply does not fit; it replaces the whole
/// status, so that fields that `K` does not have are removed.
///
/// After a conflict it reads the object from the server. It repeats the change if the generation is the same; otherwise the
/// change is about a former spec, and it returns [`StatusWrite::Outdated`].
///
/// # Errors
/// When the server rejects the request or does not answer, or other clients change the object again and again.
///
/// # Cancel safety
/// If dropped midway, the outcome of the write is unknown.
pub async fn update_status<K: ChildKind>(
    client: &Client,
    object: &K,
    change: impl Fn(&mut K),
) -> Result<StatusWrite, StatusError> {
    let live = client.live();
    let mut current = object.clone();
    let mut tries = TRIES;
    loop {
        let mut changed = current.clone();
        change(&mut changed);
        let (before, mut after) = (encoded(&current)?, encoded(&changed)?);
        if before.get("status") == after.get("status") {
            return Ok(StatusWrite::Unchanged);
        }
        let mut body = before;
        body["status"] = after["status"].take();
        let body: K = serde_json::from_value(body)?;
        let error = match client.update_status(&body).await {
            Ok(_) => return Ok(StatusWrite::Written),
            Err(error) if is_gone(&error) => return Ok(StatusWrite::Gone),
            Err(error) => error,
        };
        tries -= 1;
        if tries == 0 || !error.is_conflict() {
            return Err(error.into());
        }
        let Some(newest) = live.get::<K>(&object.key()).await? else {
            return Ok(StatusWrite::Gone);
        };
        if newest.meta().uid != object.meta().uid {
            return Ok(StatusWrite::Gone);
        }
        if newest.meta().generation != object.meta().generation {
            return Ok(StatusWrite::Outdated);
        }
        current = K::clone(&newest);
    }
}

/// A status could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// The status cannot be encoded as JSON.
    #[error("cannot encode the status as JSON")]
    Encode(#[from] serde_json::Error),
}

fn is_gone(error: &Error) -> bool {
    error.is_not_found() && !error.is_absent()
}

/// Encodes a value without members that are null: a status that omits a field does not own it.
fn encoded(value: &impl Serialize) -> Result<Value, StatusError> {
    let mut value = serde_json::to_value(value)?;
    remove_nulls(&mut value);
    Ok(value)
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Decodes the status of an object of `K`; the default if it has none.
pub(crate) fn decode_status<S: DeserializeOwned + Default>(object: &[u8]) -> Result<S, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct WithStatus<S> {
        #[serde(default = "Option::default")]
        status: Option<S>,
    }
    let object: WithStatus<S> = serde_json::from_slice(object)?;
    Ok(object.status.unwrap_or_default())
}
