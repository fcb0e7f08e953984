// SPDX-License-Identifier: Apache-2.0
//! The engine of the kit on both servers: pipeline, children, status, finalizers, errors.

mod children;
mod support;
