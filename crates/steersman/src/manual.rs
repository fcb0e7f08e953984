// SPDX-License-Identifier: Apache-2.0
//! The manual. Every code block in it is compiled, and its tests are run.
//!
//! 1. [Getting started](getting_started): an operator in one file, and its test.
//! 2. [How an object travels](objects): from the API server to your reconciler and back.
//! 3. [Testing your operator](testing): from one function call to network faults, without a cluster.
//! 4. [Conditional controllers](conditional): run only while a CRD is installed, or while any other condition holds.
//! 5. [Warm replicas](warm_replicas): leader election, and standbys that take over without a list.
//! 6. [Several clusters](clusters): one manager, any number of clusters.
//! 7. [Status and conditions](status): what your operator reports about an object.
//! 8. [Children](children): objects that your operator creates and keeps as they should be.
//! 9. [Finalizers](finalizers): cleanup before an object is deleted.
//! 10. [Errors](errors): retries, and how users see a failure.
//! 11. [Deploying](deploying): one `main`, manifests, permissions and CRDs; [configuration](configuration): flags and environment.
//! 12. [The tutorials of kubebuilder](tutorials), with lines and concepts beside the originals.
//! 13. [Coming from controller-runtime](controller_runtime), or [from kube-rs](kube_rs).
//! 14. [Glossary](glossary): the words of Steersman beside those of controller-runtime and kube-rs.

#[doc = include_str!("manual/getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("manual/objects.md")]
pub mod objects {}

#[doc = include_str!("manual/testing.md")]
pub mod testing {}

#[doc = include_str!("manual/conditional.md")]
pub mod conditional {}

#[doc = include_str!("manual/status.md")]
pub mod status {}

#[doc = include_str!("manual/children.md")]
pub mod children {}

#[doc = include_str!("manual/finalizers.md")]
pub mod finalizers {}

#[doc = include_str!("manual/errors.md")]
pub mod errors {}

#[doc = include_str!("manual/deploying.md")]
pub mod deploying {}

#[doc = include_str!("manual/configuration.md")]
pub mod configuration {}

#[doc = include_str!("manual/tutorials.md")]
pub mod tutorials {}

#[doc = include_str!("manual/clusters.md")]
pub mod clusters {}

#[doc = include_str!("manual/controller_runtime.md")]
pub mod controller_runtime {}

#[doc = include_str!("manual/kube_rs.md")]
pub mod kube_rs {}

#[doc = include_str!("manual/warm_replicas.md")]
pub mod warm_replicas {}

#[doc = include_str!("manual/glossary.md")]
pub mod glossary {}
