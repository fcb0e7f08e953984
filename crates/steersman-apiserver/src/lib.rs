// SPDX-License-Identifier: Apache-2.0
//! A Kubernetes API server for tests, demos and simulation, in the same process or on a socket.
//!
//! It needs no download, starts in milliseconds and behaves as kube-apiserver does: resource versions, watches,
//! server-side apply, custom resources, garbage collection. It works without Steersman and depends on none of its
//! crates.
//!
//! # Guarantees
//! 1. One handler serves in-process requests and HTTPS requests, and bodies are bytes in both. A test that passes on
//!    one sees the same responses on the other.
//! 2. With a [`clock::ManualClock`] and a seed, the same requests in the same order get the same responses, byte for
//!    byte.
//! 3. The server runs only requests, their watches and the work that they cause: it has no background task, thread or
//!    timer.
//! 4. No request can make the server panic.
//!
//! # Not promised
//! Durability: dropping the last clone of the server drops its state.
//!
//! # Design
//! The server parses a request ([`Service`]), authenticates its sender and injects faults. It then handles the request
//! under one lock, and never waits while it holds the lock. A request that needs a webhook stops, releases the lock, calls
//! the webhook and is handled again with the answer. A write passes decoding with defaults, field ownership,
//! admission, validation and the ordered log. A watch replays that log. The description of a kind (names, versions,
//! schema, the few kind-specific rules) is data: generated rows for built-in kinds, CRDs for custom kinds. Both use one
//! code path. Controller work, such as garbage collection, is a queue that the server drains after each request, or step
//! by step.
//!
//! # Admission
//! The server runs the admission plugins of kube-apiserver, calls admission and conversion webhooks by HTTPS, and evaluates
//! ValidatingAdmissionPolicies. Tests can add closures instead of webhooks: [`Builder::mutating_hook`] and
//! [`Builder::validating_hook`].
//!
//! # Example
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use steersman_apiserver::ApiServer;
//!
//! let server = ApiServer::builder().seed(7).build();
//! let client = kube::Client::new(server.service(), "default");
//! let version = client.apiserver_version().await?;
//! assert_eq!(version.minor, "37");
//! # Ok(())
//! # }
//! ```

mod admission;
mod apiservice;
mod apply;
mod auth;
mod background;
mod body;
mod cel;
pub mod clock;
mod compression;
mod conversion;
mod crd;
pub mod fault;
mod handler;
mod json;
mod jsonpatch;
mod listen;
mod managed;
mod names;
mod observe;
mod policy;
mod protobuf;
mod quantity;
mod random;
mod representation;
mod resource;
mod route;
mod schema;
mod selector;
mod server;
mod service;
mod state;
mod status;
mod store;
mod strategic;
mod table;
mod warning;
mod webhook;
mod workloads;
mod write;

pub use admission::{AdmissionDenied, AdmissionRequest};
pub use auth::Identity;
pub use body::{Body, BodyError};
pub use listen::{ListenError, Listener};
pub use observe::Exchange;
pub use server::{ApiServer, Builder};
pub use service::{ConnectionLost, Service};
pub use workloads::Workloads;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
