// SPDX-License-Identifier: Apache-2.0
//! Reflectors, stores, indexes and informers for Kubernetes objects, kept as their wire bytes.

mod object;
mod reflector;
mod resource;
mod revision;
mod wire;

pub use object::{DecodeError, InvalidObject, Object};
pub use reflector::{Health, ReflectorOptions, Trouble};
pub use resource::{Resource, Scope};
pub use revision::Revision;
pub use wire::pairs::Pairs;
