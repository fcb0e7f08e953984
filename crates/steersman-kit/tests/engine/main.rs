// SPDX-License-Identifier: Apache-2.0
//! The engine of the kit on both servers: pipeline, children, status, finalizers, errors.

mod children;
mod errors;
mod finalizers;
mod loops;
mod pipeline;
mod stages;
mod status;
mod steady;
mod story;
mod support;
mod table;
mod versions;
mod watching;
