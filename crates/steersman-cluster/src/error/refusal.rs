// SPDX-License-Identifier: Apache-2.0
//! The server's answer to a rejected request.

use std::{fmt, sync::Arc, time::Duration};

use http::Response;
use http_body_util::{BodyExt, Limited};
use kube::core::Status;

use super::{is_apply_conflict, words::without_values};
use crate::{
    credentials::RejectedCredentials,
    transport::{Guarded, retry_after},
};

/// Maximum number of bytes that are read of such an answer.
const MAX: usize = 1 << 16;

/// The server's answer to a rejected request. Its display form omits values of the object that the server repeats.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ApiError {
    /// The HTTP status.
    pub code: u16,
    /// The status in the body, unchanged; empty if the body is not a Kubernetes status. It can repeat values of the
    /// object, so do not log it.
    pub status: Status,
    /// Delay that the server asks for.
    pub retry_after: Option<Duration>,
    /// The rejected credentials, if the code is 401: a file, a field of the kubeconfig, or an exec plugin.
    pub credentials: Option<Arc<str>>,
}

impl ApiError {
    /// Reads an answer whose code is not a success.
    pub(crate) async fn read(response: Response<Guarded>) -> Self {
        let code = response.status().as_u16();
        let after = retry_after(response.headers());
        let credentials = response
            .extensions()
            .get()
            .map(|RejectedCredentials(place)| Arc::clone(place));
        // A part that cannot be read is left out without an error.
        let body = Limited::new(response.into_body(), MAX).collect().await;
        let status = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
        let status: Status = status.unwrap_or_default();
        let details = status.details.as_ref();
        let asked = details
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0);
        Self {
            code,
            retry_after: after.or_else(|| asked.map(|seconds| Duration::from_secs(seconds.into()))),
            status,
            credentials,
        }
    }

    /// Reports whether the namespace does not exist or is terminating. This is the normal end of its objects.
    pub(crate) fn is_about_a_namespace(&self) -> bool {
        let Some(details) = &self.status.details else {
            return false;
        };
        let mut causes = details.causes.iter();
        self.code == 404 && details.kind == "namespaces"
            || self.code == 403 && causes.any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Reports whether the kind does not exist. If only the object does not exist, the status names it.
    pub(crate) fn is_about_a_kind(&self) -> bool {
        let details = self.status.details.as_ref();
        self.code == 404 && details.is_none_or(|details| details.name.is_empty())
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = without_values(&self.status.message);
        match (message.as_str(), self.status.reason.as_str()) {
            // The server's answer for an unknown path.
            ("", "") if self.code == 404 => {
                f.write_str("no such resource on the server (404); install its CRD, or check its scope")
            }
            ("", "") => write!(f, "the server answers {}", self.code),
            ("", reason) => write!(f, "the server answers {} {reason}", self.code),
            (message, "") => write!(f, "{message} ({})", self.code),
            (message, reason) => write!(f, "{message} ({} {reason})", self.code),
        }?;
        if let Some(credentials) = &self.credentials {
            write!(f, ": check the {credentials}")?;
        }
        if is_apply_conflict(&self.status) {
            f.write_str(": take these fields over with `force`, or leave them out")?;
        }
        Ok(())
    }
}

/// Omits the details, which can contain parts of an object.
impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiError")
            .field("code", &self.code)
            .field("reason", &self.status.reason)
            .field("message", &without_values(&self.status.message))
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}
