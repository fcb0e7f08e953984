// SPDX-License-Identifier: Apache-2.0
//! API servers, faults and fixtures for testing Kubernetes controllers.
//!
//! A test is an async function that gets a [`Fixture`]: a namespace, an API group and users of its own on a running
//! API server. [`macro@test`] makes a test of it for each kind of server.
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
//! # The pieces
//! * [`EmbeddedServer`] is an API server in this process: it starts in milliseconds, and each test has its own.
//! * [`RealServer`] starts `kube-apiserver` with `etcd` and ends them, whatever happens to this process.
//! * [`FaultProxy`] stands between client and server, records what is on the wire, and breaks it on purpose.
//! * [`Fixture`] and [`User`] keep tests apart that share a server.
//!
//! # Which server a test gets
//! Every test runs on both. Within `cargo xtask test` all test binaries share one real server, which [`SHARED_SERVER_VARIABLE`] names; a test
//! binary that is run alone starts its own. [`Fixture::own_server`] gives a test one that it may stop or stall.
//!
//! If the binaries of the real server are missing, its half of the tests is skipped and a line on standard error says so.
//! Set [`REQUIRE_REAL_VARIABLE`] to fail those tests instead.

mod certificates;
mod embedded;
mod endpoint;
mod eventually;
mod fixture;
mod go;
mod harness;
mod log;
mod own_server;
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
pub use proxy::FaultProxy;
pub use real::{Builder as RealServerBuilder, RealServer, StartError};
pub use skip::{REQUIRE_REAL_VARIABLE, skip_without_tool};
pub use steersman_testing_macros::test;
pub use user::{Grant, User};
