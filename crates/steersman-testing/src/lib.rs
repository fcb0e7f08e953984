// SPDX-License-Identifier: Apache-2.0
//! API servers, faults and fixtures for testing Kubernetes controllers.
//!
//! A test is an async function with a [`Fixture`]: a separate namespace, API group and users on a running API server.
//! [`macro@test`] generates one test for each kind of server.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::api::{Api, PostParams};
//! use steersman_testing::Fixture;
//!
//! #[steersman_testing::test]
//! async fn a_config_map_is_created(fixture: Fixture) {
//!     let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), fixture.namespace());
//!     let map = ConfigMap { metadata: kube::core::ObjectMeta { name: Some("a".into()), ..Default::default() }, ..Default::default() };
//!     maps.create(&PostParams::default(), &map).await.unwrap();
//! }
//! ```
//!
//! # Components
//! * [`EmbeddedServer`] is an API server in this process: it starts in milliseconds, and each test has its own.
//! * [`RealServer`] starts `kube-apiserver` with `etcd` and stops them, whatever happens to this process.
//! * [`FaultProxy`] runs between client and server, records the requests, and injects faults.
//! * [`compare_permissions`] compares the requests of an operator with its RBAC rules.
//! * [`Fixture`] and [`User`] isolate tests that share a server.
//!
//! # Servers
//! Every test runs on both servers. Within `cargo xtask test` all test binaries share one real server, which
//! [`SHARED_SERVER_VARIABLE`] names; a test binary that runs alone starts its own. [`Fixture::own_server`] starts a
//! separate server that the test can stop or stall.
//!
//! If the binaries of the real server are missing, the tests on it are skipped, and a line on standard error reports
//! it. Set [`REQUIRE_REAL_VARIABLE`] to fail those tests instead.

mod certificates;
mod embedded;
mod endpoint;
mod eventually;
mod fixture;
mod go;
mod harness;
mod log;
mod own_server;
mod permissions;
pub mod proxy;
mod real;
mod skip;
mod token;
mod user;

pub use embedded::EmbeddedServer;
pub use endpoint::{ClientError, Endpoint, Identity};
pub use eventually::{eventually, eventually_within};
pub use fixture::Fixture;
pub use go::go_program;
pub use harness::{Outcome, SHARED_SERVER_VARIABLE, ServerKind, SharedServer, TEST_LIMIT, run};
pub use own_server::{OwnServer, OwnServerOptions};
pub use permissions::compare_permissions;
pub use proxy::FaultProxy;
pub use real::{Builder as RealServerBuilder, RealServer, StartError};
pub use skip::{REQUIRE_REAL_VARIABLE, skip_without_tool};
#[doc(hidden)]
pub use steersman_testing_macros::rustc_dependencies;
pub use steersman_testing_macros::test;
pub use user::{Grant, User};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
