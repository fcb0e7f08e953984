// SPDX-License-Identifier: Apache-2.0
//! What a controller holds of one Kubernetes cluster.

mod fence;
mod transport;

pub use fence::{Closed, Fence, FenceKeeper};
pub use transport::{RequestCount, TimedOut};
