// SPDX-License-Identifier: Apache-2.0
//! Several independent handlers for one kind.
//!
//! Handlers do not depend on each other. They share one watch, one queue and the workers of one controller, and no two
//! of them work on one object at the same time. A handler that fails is retried alone.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use steersman::{
    cluster::DeleteOptions,
    k8s_openapi::{self, api::core::v1::ConfigMap},
    kube::{ResourceExt, api::Patch},
    prelude::*,
    runtime::Handlers,
};

/// Annotation with the lifetime of a ConfigMap, in seconds since its creation.
pub const TTL: &str = "examples.steersman.dev/ttl-seconds";

/// Label that every ConfigMap gets.
pub const SIZE: &str = "examples.steersman.dev/size";

/// Adds a controller with two handlers.
///
/// # Errors
/// When it cannot be added to the manager.
pub fn add(manager: &Manager) -> Result<Controller, BoxError> {
    let handlers = Handlers::<ConfigMap>::new();
    handlers.add("size", size)?.forever();
    handlers.add("expiry", expiry)?.forever();
    Ok(handlers.add_to(manager, Controller::of::<ConfigMap>("maps").workers(2))?)
}

/// Labels each map with the number of its entries.
async fn size(request: Request, map: Option<Arc<ConfigMap>>, cx: Context) -> Result<Action, ClientError> {
    let Some(map) = map else {
        return Ok(Action::await_change());
    };
    let size = map.data.as_ref().map_or(0, |data| data.len()).to_string();
    if map.labels().get(SIZE) != Some(&size) {
        let label = Patch::Merge(json!({"metadata": {"labels": {SIZE: size}}}));
        cx.client().patch::<ConfigMap>(request.key(), &label).await?;
    }
    Ok(Action::await_change())
}

/// Deletes maps whose lifetime is over, and requeues the others for that time.
async fn expiry(request: Request, map: Option<Arc<ConfigMap>>, cx: Context) -> Result<Action, BoxError> {
    let Some(map) = map else {
        return Ok(Action::await_change());
    };
    let Some(ttl) = map.annotations().get(TTL) else {
        return Ok(Action::await_change());
    };
    let ttl = Duration::from_secs(ttl.parse().map_err(terminal)?);
    let age = map.creation_timestamp().map_or(Duration::ZERO, |time| age(&time));
    if age < ttl {
        return Ok(Action::requeue_after(ttl - age));
    }
    match cx
        .client()
        .delete::<ConfigMap>(request.key(), DeleteOptions::default())
        .await
    {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Action::await_change()),
    }
}

/// Returns the age, as far as the clocks of the server and of this machine agree.
fn age(time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time) -> Duration {
    let since = k8s_openapi::jiff::Timestamp::now().duration_since(time.0);
    Duration::try_from(since).unwrap_or_default()
}
