// SPDX-License-Identifier: Apache-2.0
//! What a controller holds of one Kubernetes cluster.
//!
//! A [`Cluster`] is a connection with a [`Client`], which reads through a cache and writes to the server.

mod client;
mod cluster;
mod error;
mod fence;
mod mapper;
mod presence;
mod recorder;
mod transport;

pub use client::{Client, Deletion, Kind, KindClient, MetadataClient, Watch};
pub use cluster::{
    CacheSettings, Cluster, ClusterBuilder, ClusterName, ClusterState, ConnectError, InferError,
};
pub use error::{Call, Error, Refusal};
pub use fence::{Closed, Fence, FenceKeeper};
pub use kube::api::DeleteParams as DeleteOptions;
pub use mapper::{Ask, MapError, Mapper, Mapping};
pub use presence::{POLL_EVERY, PresenceWatch};
pub use recorder::{About, EventCounts, EventType, Recorder};
pub use transport::{RequestCount, TimedOut};
