// SPDX-License-Identifier: Apache-2.0
//! Admission and conversion webhooks of a Kubernetes operator.

mod admission;
mod certificates;
mod conversion;
mod handler;
mod metrics;
mod patch;
mod registration;
mod rule;
#[cfg(test)]
mod test_kinds;

pub use admission::{
    AdmissionOperation, AdmissionRequest, AdmissionResponse, AdmissionWebhook, FailurePolicy,
};
pub use certificates::Certificates;
pub use conversion::Conversion;
pub use registration::Registration;
pub use rule::Rule;
