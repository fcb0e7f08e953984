// SPDX-License-Identifier: Apache-2.0
//! Write Kubernetes controllers in Rust.
//!
//! ```no_run
//! use std::sync::Arc;
//! use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
//! use steersman::prelude::*;
//!
//! struct Web;
//!
//! impl ObjectReconciler<ConfigMap> for Web {
//!     type Error = steersman::cluster::Error;
//!
//!     async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, Self::Error> {
//!         let deployment: Deployment = wanted(&map);
//!         cx.client().force().apply(&deployment).await?;
//!         Ok(Action::await_change())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), steersman::Error> {
//!     let manager = Manager::builder().build().await?;
//!     Controller::of::<ConfigMap>("web")
//!         .labels("app=web")
//!         .owns::<Deployment>()
//!         .workers(4)
//!         .add_to(&manager, Web)?;
//!     manager.run().await?;
//!     Ok(())
//! }
//! # fn wanted(_: &ConfigMap) -> Deployment { Deployment::default() }
//! ```
//!
//! [`manual`] begins with [getting started](manual::getting_started). This crate has no code of its own: each module is
//! one of the crates that it is made of, and [`prelude`] has the words that every operator uses.
//!
//! `kube` and `k8s-openapi` are re-exported in the versions that this release works with. Which Kubernetes version's types
//! `k8s-openapi` has is your choice: name one of its features (`latest`, `v1_37`) in your own `Cargo.toml`.

pub mod manual;
pub mod prelude;

pub use k8s_openapi;
pub use kube;
pub use steersman_cache as cache;
pub use steersman_cluster as cluster;
pub use steersman_core as core;
pub use steersman_endpoints as endpoints;
pub use steersman_queue as queue;
pub use steersman_runtime as runtime;
/// What can go wrong in the `main` of an operator, shown as people read it.
pub use steersman_runtime::MainError as Error;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
