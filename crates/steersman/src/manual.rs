// SPDX-License-Identifier: Apache-2.0
//! The manual. Every code block in it is compiled, and its tests are run.
//!
//! 1. [Getting started](getting_started): an operator in one file, and its test.
//! 2. [How an object travels](objects): from the API server to your reconciler and back.
//! 3. [Testing your operator](testing): from one function call to network faults, without a cluster.
//! 4. [Conditional controllers](conditional): run only while a CRD is installed, or while any other condition holds.
//! 5. [Warm replicas](warm_replicas): leader election, and standbys that take over without a list.
//! 6. [Several clusters](clusters): one manager, any number of clusters.
//! 7. [Connecting](connecting): proxies, credentials that change, limits.
//! 8. [The client in depth](client): pages, namespaces, impersonation, metrics of requests, endpoints.
//! 9. [Status and conditions](status): what your operator reports about an object.
//! 10. [Children](children): objects that your operator creates and keeps as they should be.
//! 11. [Apply sets](apply_sets): objects of any kinds and namespaces, which are pruned.
//! 12. [References](references): objects that others own, and whose changes matter to yours.
//! 13. [Finalizers](finalizers): cleanup before an object is deleted.
//! 14. [External resources](external_resources): things outside of the cluster, without leaks and duplicates.
//! 15. [Versions](versions): change a kind without losing objects; storage migration.
//! 16. [Webhooks](webhooks): defaults, rules and versions, with certificates that rotate without a failed call.
//! 17. [Errors](errors): retries, and how users see a failure.
//! 18. [Switches](switches): suspend an object, request a reconcile, or only observe.
//! 19. [Live configuration](live_configuration): settings that change while your operator runs.
//! 20. [Deploying](deploying): one `main`, manifests, permissions and CRDs; [`configuration`]: flags and environment.
//! 21. [The tutorials of kubebuilder](tutorials), with lines and concepts beside the originals.
//! 22. [Coming from controller-runtime](controller_runtime), or [from kube-rs](kube_rs).
//! 23. [Glossary](glossary): the words of Steersman beside those of controller-runtime and kube-rs.

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

#[doc = include_str!("manual/apply_sets.md")]
pub mod apply_sets {}

#[doc = include_str!("manual/references.md")]
pub mod references {}

#[doc = include_str!("manual/finalizers.md")]
pub mod finalizers {}

#[doc = include_str!("manual/external_resources.md")]
pub mod external_resources {}

#[doc = include_str!("manual/versions.md")]
pub mod versions {}

#[doc = include_str!("manual/errors.md")]
pub mod errors {}

#[doc = include_str!("manual/switches.md")]
pub mod switches {}

#[doc = include_str!("manual/live_configuration.md")]
pub mod live_configuration {}

#[doc = include_str!("manual/deploying.md")]
pub mod deploying {}

#[doc = include_str!("manual/configuration.md")]
pub mod configuration {}

#[doc = include_str!("manual/tutorials.md")]
pub mod tutorials {}

#[doc = include_str!("manual/clusters.md")]
pub mod clusters {}

#[doc = include_str!("manual/connecting.md")]
pub mod connecting {}

#[doc = include_str!("manual/client.md")]
pub mod client {}

#[doc = include_str!("manual/controller_runtime.md")]
pub mod controller_runtime {}

#[doc = include_str!("manual/kube_rs.md")]
pub mod kube_rs {}

#[doc = include_str!("manual/warm_replicas.md")]
pub mod warm_replicas {}

#[doc = include_str!("manual/webhooks.md")]
pub mod webhooks {}

#[doc = include_str!("manual/glossary.md")]
pub mod glossary {}
