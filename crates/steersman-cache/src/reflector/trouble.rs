// SPDX-License-Identifier: Apache-2.0
//! What keeps a reflector from being in step with the server.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use kube::core::Status;

use crate::Revision;

/// Why a reflector is not in step with the server. It is a state, not an end: the reflector goes on trying.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The server does not know the resource.
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
    /// The server tells of a state that is older than one it told of before. It catches up by itself where it reads from
    /// a cache that lags. It never does after a restore from a backup: then [`Cache::remove`](crate::Cache::remove)
    /// makes a new beginning.
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
    /// Its objects are in no namespace, and those of some were asked for. The server is not asked.
    #[error("it is in no namespace, and is asked for in {namespaces}: ask for it without one")]
    NotNamespaced {
        /// Those that were asked for.
        namespaces: String,
    },
}

impl Trouble {
    /// What an answer other than success means.
    pub(crate) fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let status: Option<Status> = serde_json::from_slice(body).ok();
        let message = status
            .map(|status| status.message)
            .filter(|message| !message.is_empty());
        let reason =
            message.unwrap_or_else(|| code.canonical_reason().unwrap_or("no reason given").to_owned());
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
        let mut reason = error.to_string();
        for cause in std::iter::successors(error.source(), |cause| cause.source()) {
            let cause = cause.to_string();
            // Some say themselves what caused them.
            if !reason.ends_with(&cause) {
                reason = format!("{reason}: {cause}");
            }
        }
        Self::Unreachable { reason }
    }

    /// How long the server asks to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
