// SPDX-License-Identifier: Apache-2.0
//! Reflectors, stores, indexes and informers for Kubernetes objects, kept as their wire bytes.

mod object;
mod revision;
mod wire;

pub use object::{DecodeError, InvalidObject, Object};
pub use revision::Revision;
pub use wire::pairs::Pairs;
