// SPDX-License-Identifier: Apache-2.0
//! The engine of the kit on both servers: pipeline, children, status, finalizers, errors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod apply_set_crashes;
mod apply_set_parents;
mod apply_sets;
mod children;
mod errors;
mod external;
mod failover;
mod finalizers;
mod handlers;
mod loops;
mod migration;
mod pipeline;
mod stages;
mod story;
mod support;
mod switches;
mod table;
mod versions;
mod watching;
mod webhook;
