// SPDX-License-Identifier: Apache-2.0
//! An operator for web sites: two kinds, any number of clusters, warm standby replicas. Read it in this order:
//!
//! 1. [`web`]: a `Web` has children, and reports its state in conditions.
//! 2. [`banner`]: a second kind, which depends on the first and might not be installed.
//! 3. [`clusters`]: further clusters, which Secrets add and remove.
//! 4. [`program`]: all of it, as `examples/src/bin/site.rs` runs it.
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
    Program, core::Permission, k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1,
    prelude::*, runtime::AddError,
};

pub use self::{banner::Banner, web::Web};
use self::{banner::BannerReconciler, clusters::Followed, web::WebReconciler};

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
    web::controller().add_to(manager, managed(WebReconciler))?;
    banner::controller().add_to(manager, managed(BannerReconciler))?;
    Ok(())
}

/// Returns the program of the operator: both controllers, and the clusters that Secrets name.
pub fn program() -> Program {
    let secrets = Permission::new("", "secrets", "the clusters that Secrets name").verbs(["list", "watch"]);
    steersman::program(LEASE)
        .crd::<Web>()
        .crd::<Banner>()
        .controller(web::controller(), managed(WebReconciler))
        .controller(banner::controller(), managed(BannerReconciler))
        .permission(secrets)
        .setup(|manager| Ok(manager.add(Followed::new(manager))?))
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
