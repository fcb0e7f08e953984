// SPDX-License-Identifier: Apache-2.0
//! What a server says when it says no.

use std::{fmt, time::Duration};

use http::Response;
use http_body_util::{BodyExt, Limited};
use kube::core::Status;

use super::{is_apply_conflict, words::without_values};
use crate::transport::{Guarded, retry_after};

/// How much of a refusal is read.
const MAX: usize = 1 << 16;

/// What a server says when it says no. It is shown without the values of an object that the server repeats.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ApiError {
    /// The HTTP status.
    pub code: u16,
    /// What came with it, as it came; empty if that was no Kubernetes status. It may repeat values of the object, so it does
    /// not belong into a log.
    pub status: Status,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Reads an answer that is no success.
    pub(crate) async fn read(response: Response<Guarded>) -> Self {
        let code = response.status().as_u16();
        let after = retry_after(response.headers());
        // What cannot be read of it is not worth an error of its own.
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
        }
    }

    /// Whether it says that the namespace is gone or going, which is how the life of its objects ends.
    pub(crate) fn is_about_a_namespace(&self) -> bool {
        let Some(details) = &self.status.details else {
            return false;
        };
        let mut causes = details.causes.iter();
        self.code == 404 && details.kind == "namespaces"
            || self.code == 403 && causes.any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Whether it says that there is no such kind. If there is no such object, its name is in it.
    pub(crate) fn is_about_a_kind(&self) -> bool {
        let details = self.status.details.as_ref();
        self.code == 404 && details.is_none_or(|details| details.name.is_empty())
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = without_values(&self.status.message);
        match (message.as_str(), self.status.reason.as_str()) {
            // So it answers where nothing is.
            ("", "") if self.code == 404 => {
                f.write_str("the server does not have this kind in this place: is it installed, and in a namespace? (404)")
            }
            ("", "") => write!(f, "the server answers {}", self.code),
            ("", reason) => write!(f, "the server answers {} {reason}", self.code),
            (message, "") => write!(f, "{message} ({})", self.code),
            (message, reason) => write!(f, "{message} ({} {reason})", self.code),
        }?;
        if is_apply_conflict(&self.status) {
            f.write_str(": take these fields over with `force`, or leave them out")?;
        }
        Ok(())
    }
}

/// Without the details, which may hold parts of an object.
impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("code", &self.code)
            .field("reason", &self.status.reason)
            .field("message", &without_values(&self.status.message))
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}
