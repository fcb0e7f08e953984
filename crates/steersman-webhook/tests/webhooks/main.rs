// SPDX-License-Identifier: Apache-2.0
//! Webhooks that both API servers call.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admission;
mod bad_input;
mod certificates;
mod conversion;
mod registration;
mod rotation;
mod shutdown;
mod support;
