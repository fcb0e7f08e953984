// SPDX-License-Identifier: Apache-2.0
//! Reflectors, stores, indexes and informers for Kubernetes objects, kept as their wire bytes.
//!
//! A [`Cache`] has an [`Informer`] for each resource that somebody asks for. An informer is a reflector, which lists and
//! watches, a [`Store`], which keeps what it learns, and everybody who wants to hear of changes. Objects are kept as the
//! bytes that the server sent, without `managedFields`, beside a small header ([`Object`]); they are decoded when
//! somebody wants a type, and shared as long as somebody holds it.

mod cache;
mod connect;
mod health;
mod index;
mod informer;
mod jitter;
mod known;
mod liveness;
mod object;
mod overlay;
mod reflector;
mod resource;
mod response;
mod revision;
mod store;
mod sync;
mod transform;
mod wire;

pub use cache::{
    Cache, CacheBuilder, CacheMissPolicy, InformerHandle, ObjectDetail, ReadError, ReadScopes, Reader, View,
};
pub use connect::{WriteGuard, client};
pub use health::Health;
pub use index::{Index, IndexConflict, IndexValue};
pub use informer::{
    Delivery, Event, Handler, Informer, InformerContext, InformerOptions, Registration, Stats, Subscription,
};
pub use liveness::Liveness;
pub use object::{DecodeError, InvalidObject, Object, without_content};
pub use overlay::Overlay;
pub use reflector::{ReflectorOptions, WatchError};
pub use resource::{Resource, Scope};
pub use revision::Revision;
pub use store::{Change, Query, Representation, Store, StoreOptions, StoreWriter, store};
pub use transform::Transform;
pub use wire::pairs::Pairs;
