// SPDX-License-Identifier: Apache-2.0
//! Reflectors, stores, indexes and informers for Kubernetes objects, kept as their wire bytes.
//!
//! A [`Cache`] has one [`Informer`] for each resource that a caller asks for. An informer consists of a reflector, which
//! lists and watches, a [`Store`], which holds the objects, and the handlers that receive events. The store keeps each object
//! as the bytes that the server sent, without `managedFields`, plus a small header ([`Object`]). An object is decoded when a
//! caller asks for a type. The decoded value is shared as long as a caller holds it.

mod cache;
mod connect;
mod health;
mod index;
mod informer;
mod jitter;
mod liveness;
mod object;
mod overlay;
mod presence_source;
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
pub use connect::{
    AuthorityPlace, ClientError, InvalidAuthority, InvalidProxy, ProxyOrigin, WriteGuard, client,
};
pub use health::Health;
pub use index::{Index, IndexConflict, IndexValue};
pub use informer::{
    Delivery, Event, EventHandler, Informer, InformerContext, InformerOptions, Registration, Stats,
    Subscription,
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
