// SPDX-License-Identifier: Apache-2.0
//! Access to one Kubernetes cluster: connection, client, cache, mapper, event recorder and fence.
//!
//! Build a [`Cluster`] from a configuration or from the environment. It sends no request until one is needed, and its
//! connections close when the last handle is dropped.
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
//! // Reads use a cache. The first read of a kind lists and watches it; later reads send no request.
//! let front = client.get::<Deployment>(&ObjectKey::new("web", "front")).await?;
//! let all = client.list::<Deployment>(&Query::new().namespace("web").label("tier", "front")).await?;
//!
//! // Writes are sent to the server. The next read shows the change, even before the watch delivers it.
//! if let Some(front) = front {
//!     let mut front = Deployment::clone(&front);
//!     front.spec.replicas = Some(3);
//!     match client.update(&front).await {
//!         Ok(_) => cluster.recorder("web").event(&front, EventType::Normal, "Scaled", "Scaling", "to 3 replicas"),
//!         Err(error) if error.is_conflict() => {} // Another client changed it: read it again and decide anew.
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Overview
//! | task | API |
//! |---|---|
//! | build, close and monitor a connection | [`Cluster`], [`ClusterBuilder`], [`ClusterState`] |
//! | read and write kinds that are Rust types | [`Client`] |
//! | … kinds that are known at run time | [`Client::of`], [`Mapper`] |
//! | … metadata only, which is cheaper | [`Client::metadata`] |
//! | … bypassing the cache | [`Client::live`] |
//! | … page by page, with the metadata of the list | [`Client::list_page`] |
//! | … in the name of another user | [`Client::impersonate`] |
//! | wait until the cache has reached a resource version | [`Client::wait_for_revision`] |
//! | … as a dry run, with another field manager, with force, with another timeout | [`Client::dry_run`], [`Client::field_manager`], [`Client::force`], [`Client::timeout`] |
//! | create an object or update the existing one | [`Client::create_or_update`], [`Client::apply`] |
//! | write only while a lease is held | [`Fence`], [`Client::fenced`] |
//! | record events | [`Recorder`] |
//! | use other features of kube | [`Client::kube`] |
//! | values for metrics | [`Cluster::requests`], [`Cluster::retries`], [`Cluster::request_histograms`], [`Cluster::plugin_calls`], [`Cluster::events`], [`Cluster::flow_control_rejections`] |
//! | limit requests and retries | [`ClusterBuilder::rate_limit`], [`ClusterBuilder::max_in_flight`], [`ClusterBuilder::retry_limit`] |
//!
//! # One transport
//! The verbs, cache, mapper, recorder and the clients of [`Client::kube`] all send their requests through one
//! transport. It checks the fences for each attempt, enforces the timeout, retries requests that are safe to repeat,
//! and counts attempts. A program that works with several clusters has one [`Cluster`] for each; clusters share
//! nothing.
//!
//! # In tests
//! [`ClusterBuilder::service`] takes an API server in the same process. [`ClusterBuilder::clock`],
//! [`wall_clock`](ClusterBuilder::wall_clock) and [`seed`](ClusterBuilder::seed) control time and randomness.

mod client;
mod cluster;
mod credentials;
mod error;
mod fence;
mod mapper;
mod object_ext;
mod presence;
mod recorder;
mod transport;

pub use client::{
    Client, Deletion, Impersonation, ImpersonationError, Kind, KindClient, ListPage, MetadataClient,
    OperationResult, Watch,
};
pub use cluster::{
    BadKubeconfig, CacheSettings, Cluster, ClusterBuilder, ClusterName, ClusterState, ConnectError,
    InferError,
};
pub use credentials::{CertificateError, PluginCallCount, PluginError};
pub use error::{ApiError, Conflict, Error, Operation, is_conflict};
pub use fence::{Closed, Fence, FenceKeeper};
pub use kube::api::{DeleteParams as DeleteOptions, ValidationDirective as FieldValidation};
pub use mapper::{MapError, Mapper, Mapping, ResourceQuery};
pub use object_ext::{ObjectExt, OwnerError};
pub use presence::{POLL_EVERY, PresenceWatch};
pub use recorder::{EventBuilder, EventCounts, EventType, RecordedEvent, Recorder};
pub use transport::{FlowControlCount, RateLimit, RequestCount, RequestHistogram, RequestMetric, TimedOut};
