// SPDX-License-Identifier: Apache-2.0
//! A server of custom resources that replays watches from bytes that are ready, so that it is never the bottleneck.

mod answers;
mod gate;
mod server;
mod stream;

pub use gate::Gate;
pub use server::Server;
pub use stream::{Event, Stream};
