// SPDX-License-Identifier: Apache-2.0
//! Admission and conversion webhooks of a Kubernetes operator.
//!
//! | type | purpose |
//! |---|---|
//! | [`Webhooks`] | the webhooks of an operator; added to a manager, every replica serves them |
//! | [`AdmissionWebhook`], [`Rule`] | defaulting and validating, from `Defaults` and `Validate` of the kit or from async functions |
//! | [`Conversion`] | versions of a CRD, from `From` implementations both ways through a hub |
//! | [`Certificates`] | certificate files, or a CA that is rotated without a failed call |
//! | [`Registration`] | webhook configurations and the conversion of CRDs, kept by server-side apply |
//! | [`testing`] | generated objects that are converted there and back |
//!
//! # Guarantees
//! 1. Every replica serves, leader or not, from before caches sync until everything else has ended.
//! 2. A replica is ready once it has called itself with the name of its Service and with each published bundle.
//! 3. At shutdown a replica becomes unready, serves for the [drain delay](Webhooks::drain_delay), and completes the calls in
//!    progress.
//! 4. Only the leader writes, behind its fence. Without a change it writes nothing.
//!
//! # Permissions
//! `get`, `create` and `update` of Secrets in the namespace of the operator; `get` and `patch` (and `create`, if the
//! configurations are generated) of mutating and validating webhook configurations; `get` and `patch` of the CRDs that are
//! converted.

mod admission;
mod certificates;
mod conversion;
mod handler;
mod leader;
mod metrics;
mod patch;
mod registration;
mod replica;
mod rule;
mod self_call;
#[cfg(test)]
mod test_kinds;
pub mod testing;
mod webhooks;

pub use admission::{
    AdmissionOperation, AdmissionRequest, AdmissionResponse, AdmissionWebhook, FailurePolicy,
};
pub use certificates::Certificates;
pub use conversion::Conversion;
pub use registration::Registration;
pub use rule::Rule;
pub use webhooks::{WebhookError, WebhookServer, Webhooks};
