// SPDX-License-Identifier: Apache-2.0
//! An operator for web sites: two kinds, any number of clusters, replicas that stand by. Read it in this order:
//!
//! 1. [`web`]: a `Web` has children, and says in its conditions what has become of it.
//! 2. [`banner`]: a second kind, which looks at the first and need not be installed.
//! 3. [`condition`]: what both say of themselves.
//! 4. [`clusters`]: further clusters, which come and go with Secrets.
//! 5. `examples/src/bin/site.rs`: the program.
//!
//! `cargo run --release -p steersman-cli -- demo` shows it at work, unchanged.

#![allow(
    clippy::exhaustive_structs,
    reason = "no program depends on its types, and tutorials read better without it"
)]

pub mod banner;
pub mod clusters;
pub mod condition;
pub mod web;

use kube::CustomResourceExt;
use steersman::{
    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1, prelude::*, runtime::AddError,
};

pub use self::{banner::Banner, condition::Ready, web::Web};

/// The name of the lease that its replicas share.
pub const LEASE: &str = "site-operator";

/// The name by which the operator owns fields.
const OPERATOR: &str = "site-operator";

/// The kinds that a cluster is asked to know.
#[must_use]
pub fn definitions() -> [v1::CustomResourceDefinition; 2] {
    [Web::crd(), Banner::crd()]
}

/// Adds the controllers of all kinds.
///
/// # Errors
/// When the manager does not take one in.
pub fn add(manager: &Manager) -> Result<(), AddError> {
    web::add(manager)?;
    banner::add(manager)?;
    Ok(())
}

/// Runs the operator until it is told to end, on the manager's cluster and on those that Secrets there name.
///
/// # Errors
/// When the run fails.
pub async fn run(manager: &Manager) -> Result<(), steersman::Error> {
    add(manager)?;
    tokio::select! {
        biased;
        ended = manager.run() => Ok(ended?),
        failed = clusters::follow(manager) => failed.map(|never| match never {}),
    }
}
