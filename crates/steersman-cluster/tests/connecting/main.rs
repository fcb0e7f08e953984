// SPDX-License-Identifier: Apache-2.0
//! Connections to a server: proxies, credentials that change, limits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;
mod exec;
mod limits;
mod oidc;
mod proxies;
mod proxy_server;
#[path = "../support/mod.rs"]
mod support;
mod token_file;
