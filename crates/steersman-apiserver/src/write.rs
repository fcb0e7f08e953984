// SPDX-License-Identifier: Apache-2.0
//! What happens to an object between its arrival and its storage.

pub(crate) mod admission;
pub(crate) mod checks;
pub(crate) mod defaults;
pub(crate) mod kinds;
pub(crate) mod validation;
