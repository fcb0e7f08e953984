// SPDX-License-Identifier: Apache-2.0
//! Write Kubernetes controllers in Rust.
//!
//! ```no_run
//! use k8s_openapi::api::apps::v1::Deployment;
//! use kube::CustomResource;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use steersman::prelude::*;
//!
//! #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Web", namespaced, status = "WebStatus")]
//! pub struct WebSpec {
//!     pub replicas: i32,
//! }
//!
//! #[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
//! #[serde(rename_all = "camelCase", default)]
//! pub struct WebStatus {
//!     pub observed_generation: Option<i64>,
//!     pub conditions: Conditions<WebCondition>,
//! }
//!
//! #[derive(ConditionSet, Clone, Copy, Debug)]
//! pub enum WebCondition {
//!     Available,
//! }
//!
//! struct Webs;
//!
//! impl KindReconciler for Webs {
//!     type Kind = Web;
//!     type Status = WebStatus;
//!     type Children = (Deployment,);
//!     type Finalizer = NoCleanup;
//!
//!     async fn reconcile(&self, web: &Web, work: &mut Work<Self>) -> Result<Action, BoxError> {
//!         work.child(WebCondition::Available, deployment(web)).await;
//!         Ok(Action::await_change())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), steersman::Error> {
//!     steersman::program("web-operator")
//!         .crd::<Web>()
//!         .controller(Controller::of::<Web>("web").workers(4), managed(Webs))
//!         .run()
//!         .await
//! }
//! # fn deployment(_: &Web) -> Deployment { Deployment::default() }
//! ```
//!
//! Start with [getting started](manual::getting_started) in the [`manual`]. [`program()`] is the `main` of an operator. Each
//! module re-exports one of the crates of the framework, and [`prelude`] has the names that every operator uses.
//!
//! `kube` and `k8s-openapi` are re-exported in the versions that this release works with. You choose the Kubernetes version of
//! the types in `k8s-openapi`: enable one of its features (`latest`, `v1_37`) in your `Cargo.toml`.

pub mod manual;
pub mod prelude;
mod program;

pub use k8s_openapi;
pub use kube;
pub use program::{CrdPolicy, Program, program};
pub use steersman_cache as cache;
pub use steersman_cluster as cluster;
/// Client for the objects of a cluster. It is not in the prelude, because `kube` has a type of the same name.
pub use steersman_cluster::Client;
/// Error of a client call.
pub use steersman_cluster::Error as ClientError;
pub use steersman_core as core;
pub use steersman_endpoints as endpoints;
pub use steersman_kit as kit;
pub use steersman_manifests as manifests;
pub use steersman_queue as queue;
pub use steersman_runtime as runtime;
/// Error of an operator, for `main`: `?` converts every error into it. Its `Debug` output is one readable line, because
/// `main` prints that.
pub use steersman_runtime::MainError as Error;
pub use steersman_webhook as webhook;

/// Compiles the examples of the README of the repository.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the examples of the README of this crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
