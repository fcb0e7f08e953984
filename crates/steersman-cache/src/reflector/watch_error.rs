// SPDX-License-Identifier: Apache-2.0
//! Errors that keep a reflector from being in sync.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use kube::core::Status;

use crate::Revision;

/// The reason why a reflector is not in sync. It is a state, not an end: the reflector keeps retrying.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The server does not know the resource, and answers so in the form of an API server.
    /// [`Health::absent`](crate::Health::absent) is true if no other source contradicts.
    #[error("the server does not have this resource")]
    NotInstalled,
    /// The server denies permission to read the resource.
    #[error("forbidden: {reason}")]
    Forbidden {
        /// The server's message.
        reason: String,
    },
    /// The server cannot be reached, or stopped answering.
    #[error("unreachable: {reason}")]
    Unreachable {
        /// The cause.
        reason: String,
    },
    /// The server sent nothing for too long.
    #[error("the server sent nothing for {limit:?}")]
    IdleTimeout {
        /// The timeout.
        limit: Duration,
    },
    /// The server is overloaded or fails temporarily.
    #[error("the server is busy ({code}): {reason}")]
    ServerError {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        reason: String,
        /// The server's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The server sent an older state than requested, or than it sent before. The next list is a quorum read, which is accepted
    /// whatever its revision. That ends this state, also after a restore from a backup.
    #[error("the server is behind: it sent revision {sent} after {seen}")]
    StaleResponse {
        /// The revision that it sent.
        sent: Revision,
        /// The newest revision that it sent before.
        seen: Revision,
    },
    /// The server no longer has the history from which the watch should resume.
    #[error("the revision is too old: {reason}")]
    Expired {
        /// The server's message.
        reason: String,
    },
    /// The server rejected the request in another way.
    #[error("the server rejected the request ({code}): {reason}")]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// The server's message.
        reason: String,
    },
    /// The response is no list and no watch.
    #[error("cannot decode the response: {reason}")]
    InvalidResponse {
        /// The cause.
        reason: String,
    },
    /// This program panicked while it processed the response, for example in a type whose values are indexed.
    #[error("this program panicked while processing the response")]
    Panicked,
    /// The namespace has an invalid name. No request is sent.
    #[error("invalid namespace `{name}`: use lower case letters, digits and dashes, at most 63 characters")]
    InvalidNamespace {
        /// The requested name.
        name: String,
    },
    /// The resource is cluster-scoped, but namespaces were requested. No request is sent.
    #[error("the resource is cluster-scoped; remove namespaces {namespaces}")]
    NotNamespaced {
        /// The requested namespaces.
        namespaces: String,
    },
}

/// The body of an error response.
enum Answer {
    /// A `Status` object, as an API server writes it.
    Status(Box<Status>),
    /// The answer of an API server, and of Go's HTTP server by default, for an unknown path.
    NoSuchPath,
    /// Another body, such as the HTML of a gateway.
    Other,
}

impl Answer {
    fn read(body: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct Kind {
            kind: String,
        }
        if body.trim_ascii() == b"404 page not found" {
            return Self::NoSuchPath;
        }
        let is_status = serde_json::from_slice(body).is_ok_and(|Kind { kind }| kind == "Status");
        let status = is_status.then(|| serde_json::from_slice(body));
        status.and_then(Result::ok).map_or(Self::Other, Self::Status)
    }

    fn message(&self) -> Option<&str> {
        match self {
            Self::Status(status) => Some(&status.message),
            Self::NoSuchPath | Self::Other => None,
        }
    }

    /// Returns true if a 404 means an unknown kind, rather than a missing object or anything else.
    fn is_about_the_kind(&self) -> bool {
        match self {
            Self::Status(status) => {
                let details = status.details.as_ref();
                details.is_none_or(|details| details.name.is_empty())
            }
            Self::NoSuchPath => true,
            Self::Other => false,
        }
    }
}

impl WatchError {
    /// Converts an error response.
    pub(crate) fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let answer = Answer::read(body);
        let message = answer.message().filter(|message| !message.is_empty());
        let reason = message.map_or_else(
            || code.canonical_reason().unwrap_or("no reason given").to_owned(),
            str::to_owned,
        );
        if code == StatusCode::NOT_FOUND && !answer.is_about_the_kind() {
            return Self::Rejected {
                code: code.as_u16(),
                reason: format!(
                    "{reason}; this 404 is not from the API server: check proxies and load balancers"
                ),
            };
        }
        let seconds = headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        Self::of_code(code.as_u16(), reason, seconds.map(Duration::from_secs))
    }

    /// Converts an `ERROR` event.
    pub(crate) fn of_status(status: &Status) -> Self {
        let seconds = status
            .details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0);
        let retry_after = seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        Self::of_code(status.code, status.message.clone(), retry_after)
    }

    fn of_code(code: u16, reason: String, retry_after: Option<Duration>) -> Self {
        match code {
            404 => Self::NotInstalled,
            401 | 403 => Self::Forbidden { reason },
            410 => Self::Expired { reason },
            429 | 500 | 502 | 503 | 504 => Self::ServerError {
                code,
                reason,
                retry_after,
            },
            _ => Self::Rejected { code, reason },
        }
    }

    pub(crate) fn unreachable(error: &dyn std::error::Error) -> Self {
        Self::Unreachable {
            reason: steersman_core::error_chain(error),
        }
    }

    /// Returns true if the error can end when the server answers other requests. Missing permissions and our own mistakes stay.
    pub(crate) fn can_pass_with_an_outage(&self) -> bool {
        !matches!(
            self,
            Self::NotInstalled | Self::Forbidden { .. } | Self::Panicked | Self::NotNamespaced { .. }
        )
    }

    /// Returns true if an early retry makes it worse: the server is too busy, or does not manage to send the response.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::ServerError { .. } | Self::IdleTimeout { .. })
    }

    /// Returns the server's `Retry-After`.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ServerError { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
