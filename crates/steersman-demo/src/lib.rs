// SPDX-License-Identifier: Apache-2.0
//! An operator for web sites: two kinds, any number of clusters, warm standby replicas. Read it in this order:
//!
//! 1. [`web`]: a `Web` has children, and reports its state in conditions.
//! 2. [`banner`]: a second kind, which depends on the first and might not be installed.
//! 3. [`clusters`]: further clusters, which Secrets add and remove.
//! 4. `examples/src/bin/site.rs`: the program.
//!
//! `cargo run --release -p steersman-cli -- demo` runs it unchanged.

#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "no program depends on its types, and tutorials read better without it"
)]

pub mod banner;
pub mod clusters;
pub mod web;

use kube::CustomResourceExt;
use steersman::{
    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1, prelude::*, runtime::AddError,
};

pub use self::{banner::Banner, web::Web};

/// Name of the lease that the replicas share.
pub const LEASE: &str = "site-operator";

/// Kinds with the condition Ready.
pub trait Ready {
    /// Reports whether an object is ready for its current generation. A generation that was not reconciled yet is not
    /// ready.
    fn is_ready(&self) -> bool;
}

/// Returns the CRDs of all kinds.
#[must_use]
pub fn definitions() -> [v1::CustomResourceDefinition; 2] {
    [Web::crd(), Banner::crd()]
}

/// Adds the controllers of all kinds.
///
/// # Errors
/// When the manager rejects one.
pub fn add(manager: &Manager) -> Result<(), AddError> {
    web::add(manager)?;
    banner::add(manager)?;
    Ok(())
}

/// Runs the operator until shutdown, on the manager's cluster and on the clusters that Secrets there name.
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
