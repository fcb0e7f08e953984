// SPDX-License-Identifier: Apache-2.0
//! Errors of requests to a cluster.

mod operation;
mod refusal;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use kube::core::Status;
use steersman_cache::ReadError;

pub use self::{operation::Operation, refusal::ApiError};
use crate::{Closed, TimedOut, transport::is_unsent};

/// A request to a cluster failed. The message names verb, kind and key, and contains the server's message. It omits
/// values of the object that the server repeats in a rejection; they are in [`status`](Self::status). The message of an
/// admission webhook is shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The object does not exist.
    #[error("cannot {call}: not found")]
    NotFound {
        /// The failed operation.
        call: Box<Operation>,
    },
    /// The server rejected the request.
    #[error("cannot {call}: {refusal}")]
    Refused {
        /// The failed operation.
        call: Box<Operation>,
        /// The server's answer.
        refusal: Box<ApiError>,
        /// Set if another client changed the object. As a source it stays visible under every wrapper, including
        /// wrappers that forward `source()`, such as `#[error(transparent)]`, `Box`, `Arc` and `anyhow::Error`.
        #[source]
        conflict: Option<Conflict>,
    },
    /// A fence rejected the request, or the cluster was closed. [`Closed::was_sent`] is true if the server
    /// might have applied the write.
    #[error("cannot {call}")]
    Closed {
        /// The failed operation.
        call: Box<Operation>,
        /// Cause.
        #[source]
        source: Closed,
    },
    /// The request timed out before the complete answer arrived. A write might have been applied.
    #[error("cannot {call}")]
    TimedOut {
        /// The failed operation.
        call: Box<Operation>,
        /// The timeout.
        #[source]
        source: TimedOut,
    },
    /// The server cannot be reached, or stopped answering. A write might have been applied.
    #[error("cannot {call}: the server does not answer")]
    Unreachable {
        /// The failed operation.
        call: Box<Operation>,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The answer cannot be decoded as the requested type.
    #[error("cannot {call}: the answer cannot be decoded as {type_name}, at {path}: {reason}")]
    Decode {
        /// The failed operation.
        call: Box<Operation>,
        /// The type.
        type_name: &'static str,
        /// The field, such as `spec.replicas`.
        path: String,
        /// The problem, without the value of the field.
        reason: String,
    },
    /// The object cannot be encoded as JSON.
    #[error("cannot {call}: it cannot be encoded as JSON")]
    Encode {
        /// The failed operation.
        call: Box<Operation>,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The closure that changes the object returned an error. Nothing was written.
    #[error("cannot {call}: the closure failed")]
    Change {
        /// The failed operation.
        call: Box<Operation>,
        /// The error of the closure.
        #[source]
        source: tower::BoxError,
    },
    /// The request is invalid, and was not sent.
    #[error("cannot {call}: {reason}")]
    Invalid {
        /// The failed operation.
        call: Box<Operation>,
        /// The problem and the remedy.
        reason: &'static str,
    },
    /// The cache cannot answer.
    #[error("cannot {call} from the cache")]
    Read {
        /// The failed operation.
        call: Box<Operation>,
        /// Cause.
        #[source]
        source: Box<ReadError>,
    },
}

/// Another client changed the object since it was read; the source of an [`Error`] for which
/// [`is_conflict`](Error::is_conflict) holds. To recognise a conflict in any error, look for this type among its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another client changed the object; read it again and retry")]
#[non_exhaustive]
pub struct Conflict;

impl Error {
    pub(crate) fn refused(call: Operation, refusal: ApiError) -> Self {
        Self::Refused {
            call: Box::new(call),
            conflict: is_conflict(&refusal.status).then_some(Conflict),
            refusal: Box::new(refusal),
        }
    }

    /// Returns the failed operation.
    #[must_use]
    pub fn call(&self) -> &Operation {
        match self {
            Self::NotFound { call }
            | Self::Refused { call, .. }
            | Self::Closed { call, .. }
            | Self::TimedOut { call, .. }
            | Self::Unreachable { call, .. }
            | Self::Decode { call, .. }
            | Self::Encode { call, .. }
            | Self::Change { call, .. }
            | Self::Invalid { call, .. }
            | Self::Read { call, .. } => call,
        }
    }

    /// Returns the server's status if the server rejected the request. Its message and details can repeat values of the
    /// object, which the error message omits.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.refusal().map(|refusal| &refusal.status)
    }

    /// Reports whether another client changed the object: read it again and retry. This is a normal event.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                conflict: Some(_),
                ..
            }
        )
    }

    /// Reports whether another field manager owns fields that were applied. A retry does not help: take the fields over
    /// with [`force`](crate::Client::force), or leave them out.
    #[must_use]
    pub fn is_apply_conflict(&self) -> bool {
        self.refusal()
            .is_some_and(|refusal| is_apply_conflict(&refusal.status))
    }

    /// Reports whether an object with this name already exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is_refused(409, "AlreadyExists")
    }

    /// Reports whether the object or its kind does not exist; see [`is_absent`](Self::is_absent).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. }) || self.is_absent() || self.is_refused(404, "NotFound")
    }

    /// Reports whether the server does not have the kind, or not in this version.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => refusal.is_about_a_kind(),
            Self::Read { source, .. } => matches!(**source, ReadError::Absent { .. }),
            _ => false,
        }
    }

    /// Reports whether the account lacks a permission.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is_refused(403, "Forbidden")
    }

    /// Reports whether the object fails the validation of its kind. A retry does not help.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.is_refused(422, "Invalid")
    }

    /// Reports whether the object cannot be decoded as the requested type. A retry does not help.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        match self {
            Self::Decode { .. } => true,
            Self::Read { source, .. } => matches!(**source, ReadError::Decode(_)),
            _ => false,
        }
    }

    /// Reports whether a fence rejected the request or the cluster was closed, even while the request was under way.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Reports whether the request, or a wait for the cache, timed out.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Read { source, .. } => matches!(**source, ReadError::NotReached { .. }),
            _ => false,
        }
    }

    /// Reports whether the server no longer has the requested history: the continue token of a list, or the resource version
    /// of a watch. Start again without it.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.is_refused(410, "Expired")
    }

    /// Reports whether the server might have applied a write: no answer arrived, it cannot be decoded, or it reports an
    /// internal error. If this is `false`, nothing has changed.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        let is_unknown = match self {
            Self::Closed { source, .. } => source.was_sent,
            Self::Unreachable { source, .. } => !is_unsent(source),
            Self::Refused { refusal, .. } => refusal.code >= 500,
            Self::TimedOut { .. } | Self::Decode { .. } => true,
            Self::NotFound { .. }
            | Self::Encode { .. }
            | Self::Change { .. }
            | Self::Invalid { .. }
            | Self::Read { .. } => false,
        };
        is_unknown && self.call().is_write()
    }

    /// Returns the delay that the server asks for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal()?.retry_after
    }

    fn refusal(&self) -> Option<&ApiError> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    fn is_refused(&self, code: u16, reason: &str) -> bool {
        self.refusal()
            .is_some_and(|refusal| refusal.code == code && refusal.status.reason == reason)
    }
}

/// Reports whether an error of `kube` is a conflict: another client changed the object.
#[must_use]
pub fn is_conflict(status: &Status) -> bool {
    status.reason == "Conflict" && !is_apply_conflict(status)
}

fn is_apply_conflict(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| {
        let mut causes = details.causes.iter();
        causes.any(|cause| cause.reason == "FieldManagerConflict")
    })
}
