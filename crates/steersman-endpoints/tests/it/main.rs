// SPDX-License-Identifier: Apache-2.0
//! Integration tests. They are one binary, so that a change links once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod auth_filter;
mod checks;
mod client_certificates;
mod http2;
mod metrics;
mod metrics_server;
mod server;
mod support;
mod tls;
