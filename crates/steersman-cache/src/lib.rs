// SPDX-License-Identifier: Apache-2.0
//! Reflectors, stores, indexes and informers for Kubernetes objects, kept as their wire bytes.

mod index;
mod object;
mod overlay;
mod revision;
mod store;
mod transform;
#[allow(
    dead_code,
    reason = "the reflector uses it, which is written at the same time"
)]
mod wire;

pub use index::{Index, IndexConflict, IndexValue};
pub use object::{DecodeError, InvalidObject, Object};
pub use overlay::Overlay;
pub use revision::Revision;
pub use store::{Change, Query, Representation, Store, StoreOptions, StoreWriter, store};
pub use transform::Transform;
pub use wire::pairs::Pairs;
