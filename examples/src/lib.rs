// SPDX-License-Identifier: Apache-2.0
//! What the example programs do, so that tests can do it, too. Each module is a tutorial of its own:
//!
//! 1. [`site`]: an operator with kinds of its own, children, conditions, clusters that come and go, and replicas.
//! 2. [`handlers`]: several independent things about one kind.
//! 3. [`mirror`]: one controller, two clusters.
//! 4. [`tags`]: a kind that is known only when the program runs.
//! 5. [`certificates`]: a kind that may not be installed, and several replicas.

#![allow(
    clippy::exhaustive_structs,
    reason = "nobody depends on the examples, and tutorials read better without it"
)]

pub mod certificates;
pub mod handlers;
pub mod mirror;
pub mod tags;

pub use steersman_demo as site;
