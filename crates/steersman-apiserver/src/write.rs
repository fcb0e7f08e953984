// SPDX-License-Identifier: Apache-2.0
//! Write path: the steps between decoding an object and storing it.

pub(crate) mod admission;
mod certificates;
pub(crate) mod checks;
pub(crate) mod defaults;
pub(crate) mod kinds;
pub(crate) mod validation;
