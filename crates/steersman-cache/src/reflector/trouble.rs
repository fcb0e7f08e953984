// SPDX-License-Identifier: Apache-2.0
//! What keeps a reflector from being in step with the server.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use kube::core::Status;

use crate::Revision;

/// Why a reflector is not in step with the server. It is a state, not an end: the reflector goes on trying.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The server does not know the resource, and says so as an API server does. [`Health::absent`](crate::Health::absent)
    /// tells whether that is all that is known of it.
    #[error("the server does not have it")]
    Absent,
    /// The server does not let us read it.
    #[error("forbidden: {reason}")]
    Forbidden {
        /// The server's words.
        reason: String,
    },
    /// The server cannot be reached, or stopped answering.
    #[error("unreachable: {reason}")]
    Unreachable {
        /// What happened.
        reason: String,
    },
    /// The server said nothing for too long.
    #[error("nothing came for {limit:?}")]
    Silent {
        /// How long that is.
        limit: Duration,
    },
    /// The server asks for patience.
    #[error("the server is busy ({code}): {reason}")]
    Busy {
        /// The HTTP status.
        code: u16,
        /// The server's words.
        reason: String,
        /// How long it asks to wait.
        retry_after: Option<Duration>,
    },
    /// The server sends an older state than it was asked for, or than it sent before. The next list is a quorum read, which
    /// is believed whatever its revision: that ends this, also after a restore from a backup.
    #[error("the server is behind: it tells of revision {told} after {seen}")]
    Behind {
        /// The revision that it tells of.
        told: Revision,
        /// The newest that it told of before.
        seen: Revision,
    },
    /// The history that the watch wanted to go on from is gone.
    #[error("the revision is too old: {reason}")]
    Expired {
        /// The server's words.
        reason: String,
    },
    /// The server says no in another way.
    #[error("refused with {code}: {reason}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The server's words.
        reason: String,
    },
    /// What the server sends is no list and no watch.
    #[error("the answer cannot be read: {reason}")]
    Undecodable {
        /// What is wrong with it.
        reason: String,
    },
    /// Something in this program panicked over what the server sent, such as a type whose values are indexed.
    #[error("this program panicked over what the server sent")]
    Panicked,
    /// No namespace can have this name. The server is not asked.
    #[error(
        "`{name}` cannot be the name of a namespace: use lower case letters, digits and dashes, up to 63"
    )]
    InvalidNamespace {
        /// The name that was asked for.
        name: String,
    },
    /// Its objects are in no namespace, and those of some were asked for. The server is not asked.
    #[error("it is in no namespace, and is asked for in {namespaces}: ask for it without one")]
    NotNamespaced {
        /// Those that were asked for.
        namespaces: String,
    },
}

/// The body of an answer other than success.
enum Answer {
    /// As an API server writes it.
    Status(Box<Status>),
    /// What an API server answers, and so does Go by itself, where it has nothing at this path.
    NoSuchPath,
    /// Something else, such as the HTML of a gateway.
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

    /// Whether a 404 says that there is no such kind, rather than no such object, or anything else.
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
    /// What an answer other than success means.
    pub(crate) fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let answer = Answer::read(body);
        let message = answer.message().filter(|message| !message.is_empty());
        let reason = message.map_or_else(
            || code.canonical_reason().unwrap_or("no reason given").to_owned(),
            str::to_owned,
        );
        if code == StatusCode::NOT_FOUND && !answer.is_about_the_kind() {
            return Self::Refused {
                code: code.as_u16(),
                reason: format!(
                    "{reason}; this 404 does not come from the API server: check proxies and load balancers"
                ),
            };
        }
        let seconds = headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        Self::of_code(code.as_u16(), reason, seconds.map(Duration::from_secs))
    }

    /// What an `ERROR` event means.
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
            404 => Self::Absent,
            401 | 403 => Self::Forbidden { reason },
            410 => Self::Expired { reason },
            429 | 500 | 502 | 503 | 504 => Self::Busy {
                code,
                reason,
                retry_after,
            },
            _ => Self::Refused { code, reason },
        }
    }

    pub(crate) fn unreachable(error: &dyn std::error::Error) -> Self {
        Self::Unreachable {
            reason: steersman_core::error_chain(error),
        }
    }

    /// Whether it can be over when the server answers other requests. Missing permissions and our own mistakes stay.
    pub(crate) fn can_pass_with_an_outage(&self) -> bool {
        !matches!(
            self,
            Self::Absent | Self::Forbidden { .. } | Self::Panicked | Self::NotNamespaced { .. }
        )
    }

    /// Whether another try soon makes it worse: the server is too busy, or does not manage to send what was asked for.
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Silent { .. })
    }

    /// How long the server asks to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
