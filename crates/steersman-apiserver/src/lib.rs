// SPDX-License-Identifier: Apache-2.0
//! A Kubernetes API server for tests, demos and simulation, in the same process or on a socket.
//!
//! It needs no download, starts in milliseconds and behaves as kube-apiserver does: resource versions, watches,
//! server-side apply, custom resources, garbage collection. It is usable alone and knows nothing of the framework.
//!
//! # Guarantees
//! 1. One handler serves requests in this process and over HTTPS, and bodies are bytes in both: a test that passes on
//!    one sees the same on the other.
//! 2. With a [`clock::ManualClock`] and a seed, the same requests in the same order get the same responses, byte for byte.
//! 3. Nothing runs but requests, their watches and what they call for: no task, no thread, no timer of its own.
//! 4. No request can make the server panic.
//!
//! # Not promised
//! Durability: the state is gone with the last clone of the server.
//!
//! # How it is built
//! A request is read ([`Service`]), its sender identified, faults applied, and then it is handled under one lock, which
//! is never held while anything is waited for. Writes go through decoding, ownership of fields, preparation, validation
//! and the ordered log; a watch is a replay of that log. What a kind is (names, versions, schema, the few rules in which
//! kinds differ) is data: built-in kinds come from generated rows, custom ones from their definitions, and there is one
//! code path for both. Work that controllers do elsewhere is a queue that is emptied after each request, or by steps.
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
mod workloads;
mod write;

pub use auth::Identity;
pub use body::{Body, BodyError};
pub use listen::{ListenError, Listener};
pub use observe::Exchange;
pub use server::{ApiServer, Builder};
pub use service::{ConnectionLost, Service};
pub use workloads::Workloads;
