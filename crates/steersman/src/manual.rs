// SPDX-License-Identifier: Apache-2.0
//! The manual. Every block of code in it is compiled, and the tests in it are run.
//!
//! 1. [Getting started](getting_started): an operator in one file, and its test.
//! 2. [How an object travels](objects): from the server to your reconciler and back.
//! 3. [Testing your operator](testing): from a function call to a broken wire, without a cluster.
//! 4. [Conditional controllers](conditional): run only while a CRD, or anything else, is there.
//! 5. [Warm replicas](warm_replicas): another one goes on where the leader ended.
//! 6. [Several clusters](clusters): one manager, any number of them.
//! 7. [Coming from controller-runtime](controller_runtime), or [from kube-rs](kube_rs).

#[doc = include_str!("manual/getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("manual/objects.md")]
pub mod objects {}

#[doc = include_str!("manual/testing.md")]
pub mod testing {}

#[doc = include_str!("manual/conditional.md")]
pub mod conditional {}

#[doc = include_str!("manual/clusters.md")]
pub mod clusters {}

#[doc = include_str!("manual/controller_runtime.md")]
pub mod controller_runtime {}

#[doc = include_str!("manual/kube_rs.md")]
pub mod kube_rs {}

#[doc = include_str!("manual/warm_replicas.md")]
pub mod warm_replicas {}
