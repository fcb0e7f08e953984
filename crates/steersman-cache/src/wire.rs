// SPDX-License-Identifier: Apache-2.0
//! Decodes the bytes of a response into objects: framing, and one scan over each object.

mod block;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
pub(crate) mod item_types;
pub(crate) mod lines;
pub(crate) mod list;
pub(crate) mod pairs;
#[cfg(test)]
mod reference;
pub(crate) mod scan;
pub(crate) mod skip;
