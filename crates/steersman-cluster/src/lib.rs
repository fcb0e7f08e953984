// SPDX-License-Identifier: Apache-2.0
//! What a controller holds of one Kubernetes cluster: connection, client, cache, mapper, event recorder and fence.
//!
//! A [`Cluster`] is made from a configuration, or from what the environment says. It sends nothing until somebody asks,
//! and ends with its last handle.
//!
//! ```no_run
//! use k8s_openapi::api::apps::v1::Deployment;
//! use steersman_cache::Query;
//! use steersman_cluster::{Cluster, EventType};
//! use steersman_core::ObjectKey;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::builder("production").build().await?;
//! let client = cluster.client();
//!
//! // Reads come from a cache. The first one of a kind lists and watches it; from then on they cost no request.
//! let front = client.get::<Deployment>(&ObjectKey::new("web", "front")).await?;
//! let all = client.list::<Deployment>(&Query::new().namespace("web").label("tier", "front")).await?;
//!
//! // Writes go to the server. What they changed is seen by the next read, however late the watch tells of it.
//! if let Some(front) = front {
//!     let mut front = Deployment::clone(&front);
//!     front.spec.replicas = Some(3);
//!     match client.update(&front).await {
//!         Ok(_) => cluster.recorder("web").event(&front, EventType::Normal, "Scaled", "Scaling", "to 3 replicas"),
//!         Err(error) if error.is_conflict() => {} // Somebody was quicker: read and decide anew.
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Where to find what
//! | for | there is |
//! |---|---|
//! | making, closing and watching over a connection | [`Cluster`], [`ClusterBuilder`], [`ClusterState`] |
//! | reading and writing kinds that are types | [`Client`] |
//! | … kinds that are known when the program runs | [`Client::of`], [`Mapper`] |
//! | … metadata alone, which is cheap | [`Client::metadata`] |
//! | … past the cache | [`Client::live`] |
//! | … without effect, by another name, with force, with less time | [`Client::dry_run`], [`Client::field_manager`], [`Client::force`], [`Client::timeout`] |
//! | writing only as long as one may | [`Fence`], [`Client::fenced`] |
//! | saying what happened | [`Recorder`] |
//! | all that kube can do besides | [`Client::kube`] |
//! | counters for metrics | [`Cluster::requests`], [`Cluster::retries`], [`Cluster::events`] |
//!
//! # One way to the server
//! Verbs, cache, mapper, recorder and the clients that [`Client::kube`] gives all send their requests the same way. There
//! each attempt passes the fences, has its time, is tried again if that is harmless, and is counted. A program that works
//! with several clusters has one [`Cluster`] for each; they know nothing of each other.
//!
//! # In tests
//! [`ClusterBuilder::service`] takes an API server in the same process, [`ClusterBuilder::clock`],
//! [`wall_clock`](ClusterBuilder::wall_clock) and [`seed`](ClusterBuilder::seed) say what time and chance are.

mod client;
mod cluster;
mod error;
mod fence;
mod mapper;
mod object_ext;
mod presence;
mod recorder;
mod transport;

pub use client::{Client, Deletion, Kind, KindClient, MetadataClient, Watch};
pub use cluster::{
    BadKubeconfig, CacheSettings, Cluster, ClusterBuilder, ClusterName, ClusterState, ConnectError,
    InferError,
};
pub use error::{ApiError, Conflict, Error, Operation, is_conflict};
pub use fence::{Closed, Fence, FenceKeeper};
pub use kube::api::{DeleteParams as DeleteOptions, ValidationDirective as FieldValidation};
pub use mapper::{MapError, Mapper, Mapping, ResourceQuery};
pub use object_ext::{ObjectExt, OwnerError};
pub use presence::{POLL_EVERY, PresenceWatch};
pub use recorder::{EventBuilder, EventCounts, EventType, RecordedEvent, Recorder};
pub use transport::{RequestCount, TimedOut};
