// SPDX-License-Identifier: Apache-2.0
//! The example programs as a library, so that tests can run them. Each module is a tutorial:
//!
//! 1. [`site`]: an operator with custom kinds, children, conditions, clusters that are added and removed, and replicas.
//! 2. [`handlers`]: several independent handlers for one kind, each with its own condition.
//! 3. [`mirror`]: one controller, two clusters.
//! 4. [`replicate`]: the same, which also copies changes and deletions.
//! 5. [`tags`]: a kind that is known only at run time.
//! 6. [`certificates`]: a kind that might not be installed, and several replicas.
//! 7. [`guards`]: a kind that is known only at run time and might not be installed, with a finalizer and events.
//! 8. [`tenants`]: objects of several namespaces, which are pruned.
//! 9. [`dns`]: a resource outside of the cluster, at a service with an HTTP API.
//! 10. [`memcached`] and [`cron_job`]: the tutorials of kubebuilder.

#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "no crate depends on the examples, and tutorials read better without it"
)]

pub mod certificates;
pub mod cron_job;
pub mod dns;
pub mod guards;
pub mod handlers;
pub mod memcached;
pub mod mirror;
pub mod replicate;
pub mod tags;
pub mod tenants;

pub use steersman_demo as site;
