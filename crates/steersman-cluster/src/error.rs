// SPDX-License-Identifier: Apache-2.0
//! Why a request to a cluster has no answer, or not the one that was hoped for.

mod refusal;
mod words;

use std::{fmt, time::Duration};

use kube::core::Status;
use steersman_cache::{ReadError, Resource};
use steersman_core::ObjectKey;

pub use self::refusal::ApiError;
use crate::{Closed, TimedOut, transport::is_unsent};

/// A request to a cluster failed. It names verb, kind and key, and what the server says. Values of an object that the server
/// repeats when it refuses one are not shown; they are in [`status`](Self::status). What an admission webhook says in words
/// of its own is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such object.
    #[error("cannot {call}: there is none")]
    NotFound {
        /// What was asked for.
        call: Box<Operation>,
    },
    /// The server said no.
    #[error("cannot {call}: {refusal}")]
    Refused {
        /// What was asked for.
        call: Box<Operation>,
        /// What the server said.
        refusal: Box<ApiError>,
        /// Set if another client changed the object. As a source it stays visible under every wrapper, also under those that
        /// forward `source()`, such as `#[error(transparent)]`, `Box`, `Arc` and `anyhow::Error`.
        #[source]
        conflict: Option<Conflict>,
    },
    /// A fence held the request back, or the cluster was closed. A write that was under way then may have been applied all
    /// the same: [`Closed::was_sent`] tells the two apart.
    #[error("cannot {call}")]
    Closed {
        /// What was asked for.
        call: Box<Operation>,
        /// Why.
        #[source]
        source: Closed,
    },
    /// No complete answer came in time. A write may have been applied all the same.
    #[error("cannot {call}")]
    TimedOut {
        /// What was asked for.
        call: Box<Operation>,
        /// How long it was waited for.
        #[source]
        source: TimedOut,
    },
    /// The server cannot be reached, or stopped answering. A write may have been applied all the same.
    #[error("cannot {call}: the server does not answer")]
    Unreachable {
        /// What was asked for.
        call: Box<Operation>,
        /// What happened.
        #[source]
        source: Box<kube::Error>,
    },
    /// The answer does not have the shape of the type that was asked for.
    #[error("cannot {call}: the answer cannot be read as {type_name}, at {path}: {reason}")]
    Decode {
        /// What was asked for.
        call: Box<Operation>,
        /// The type.
        type_name: &'static str,
        /// The field, such as `spec.replicas`.
        path: String,
        /// What is wrong with it, without what it holds.
        reason: String,
    },
    /// The object cannot be written as JSON.
    #[error("cannot {call}: it cannot be written as JSON")]
    Encode {
        /// What was asked for.
        call: Box<Operation>,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// The request makes no sense, and was not sent.
    #[error("cannot {call}: {reason}")]
    Invalid {
        /// What was asked for.
        call: Box<Operation>,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// The cache has no answer.
    #[error("cannot {call} from the cache")]
    Read {
        /// What was asked for.
        call: Box<Operation>,
        /// Why not.
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

/// What was asked for: a verb, a kind, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    verb: &'static str,
    resource: Resource,
    namespace: Box<str>,
    name: Box<str>,
    subresource: Box<str>,
}

impl Error {
    pub(crate) fn refused(call: Operation, refusal: ApiError) -> Self {
        Self::Refused {
            call: Box::new(call),
            conflict: is_conflict(&refusal.status).then_some(Conflict),
            refusal: Box::new(refusal),
        }
    }

    /// What was asked for.
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
            | Self::Invalid { call, .. }
            | Self::Read { call, .. } => call,
        }
    }

    /// What the server said, if it said no, as it said it: message and details may repeat values of the object, which the
    /// error itself does not show.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.refusal().map(|refusal| &refusal.status)
    }

    /// Whether somebody else changed the object meanwhile: read it again, and try again. It is no reason for alarm.
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

    /// Whether somebody else owns fields that were applied. It does not pass by itself: take them over with
    /// [`force`](crate::Client::force), or leave them out.
    #[must_use]
    pub fn is_apply_conflict(&self) -> bool {
        self.refusal()
            .is_some_and(|refusal| is_apply_conflict(&refusal.status))
    }

    /// Whether there is an object of this name already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is_refused(409, "AlreadyExists")
    }

    /// Whether there is no such object, or no such kind; see [`is_absent`](Self::is_absent).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. }) || self.is_absent() || self.is_refused(404, "NotFound")
    }

    /// Whether the server does not have the kind, or not in this version.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => refusal.is_about_a_kind(),
            Self::Read { source, .. } => matches!(**source, ReadError::Absent { .. }),
            _ => false,
        }
    }

    /// Whether the server does not let us.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is_refused(403, "Forbidden")
    }

    /// Whether the object breaks a rule of its kind, which no repetition will change.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.is_refused(422, "Invalid")
    }

    /// Whether the object does not have the shape of the type that was asked for, which no repetition will change.
    #[must_use]
    pub fn is_undecodable(&self) -> bool {
        match self {
            Self::Decode { .. } => true,
            Self::Read { source, .. } => matches!(**source, ReadError::Decode(_)),
            _ => false,
        }
    }

    /// Whether a fence held the request back, or the cluster was closed, also if that was when it was under way.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Whether no complete answer came in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }

    /// Whether the server may have applied a write all the same: no answer came, it cannot be read, or it says that
    /// something went wrong inside. Where this is `false`, nothing has changed.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        let is_unknown = match self {
            Self::Closed { source, .. } => source.was_sent,
            Self::Unreachable { source, .. } => !is_unsent(source),
            Self::Refused { refusal, .. } => refusal.code >= 500,
            Self::TimedOut { .. } | Self::Decode { .. } => true,
            Self::NotFound { .. } | Self::Encode { .. } | Self::Invalid { .. } | Self::Read { .. } => false,
        };
        is_unknown && self.call().is_write()
    }

    /// How long the server asks to wait.
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

/// Whether a server says that somebody else changed an object meanwhile; for those who ask it through `kube`.
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

impl Operation {
    /// About one object.
    pub(crate) fn on(verb: &'static str, resource: &Resource, key: &ObjectKey) -> Self {
        Self {
            name: key.name().into(),
            ..Self::within(verb, resource, key.namespace())
        }
    }

    /// About the objects of a namespace, or of all of them as the empty name.
    pub(crate) fn within(verb: &'static str, resource: &Resource, namespace: &str) -> Self {
        Self {
            verb,
            resource: resource.clone(),
            namespace: namespace.into(),
            name: "".into(),
            subresource: "".into(),
        }
    }

    pub(crate) fn subresource_of(mut self, subresource: &str) -> Self {
        self.subresource = subresource.into();
        self
    }

    fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// The verb, such as `update`.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// The kind.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The namespace, empty for all of them and for a cluster-scoped kind.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name, empty where it is about several objects, or about one whose name the server chooses.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The subresource, such as `status`, or empty.
    #[must_use]
    pub fn subresource(&self) -> &str {
        &self.subresource
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (&*self.namespace, &*self.name) {
            ("", "") => {}
            ("", name) => write!(f, " {name}")?,
            (namespace, "") => write!(f, " in {namespace}")?,
            (namespace, name) => write!(f, " {namespace}/{name}")?,
        }
        if !self.subresource.is_empty() {
            write!(f, " ({})", self.subresource)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> Error {
        refused_because(code, reason, message, "")
    }

    fn refused_because(code: u16, reason: &str, message: &str, cause: &str) -> Error {
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
        let mut status = Status::failure(message, reason).with_code(code);
        let causes = serde_json::json!([{"reason": cause, "field": ".data"}]);
        let details = serde_json::json!({"name": "front", "causes": causes});
        status.details = serde_json::from_value(details).unwrap();
        let refusal = ApiError {
            code,
            status,
            retry_after: None,
        };
        let call = Operation::on("update", &maps, &ObjectKey::new("web", "front"));
        Error::refused(call, refusal)
    }

    // R161
    #[test]
    fn a_conflict_is_told_by_code_and_reason() {
        let conflict = refused(409, "Conflict", "the object has been modified");
        assert!(conflict.is_conflict() && !conflict.is_already_exists());
        let message = "Apply failed with 1 conflict";
        let applied = refused_because(409, "Conflict", message, "FieldManagerConflict");
        assert!(applied.is_apply_conflict() && !applied.is_conflict());
        assert!(
            applied
                .to_string()
                .ends_with("take these fields over with `force`, or leave them out")
        );
        let exists = refused(409, "AlreadyExists", "there is one");
        assert!(exists.is_already_exists() && !exists.is_conflict());
        assert!(refused(403, "Forbidden", "").is_forbidden());
        let not_found = refused(404, "NotFound", "");
        assert!(not_found.is_not_found() && !not_found.is_absent());
    }

    #[test]
    fn a_write_may_be_applied_unless_the_server_says_otherwise() {
        assert!(refused(504, "Timeout", "").may_be_applied());
        assert!(!refused(409, "Conflict", "").may_be_applied());
        let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
        let timed_out = |verb| Error::TimedOut {
            call: Box::new(Operation::on(verb, &maps, &ObjectKey::new("web", "front"))),
            source: TimedOut {
                limit: Duration::from_secs(1),
            },
        };
        assert!(timed_out("update").may_be_applied());
        assert!(!timed_out("get").may_be_applied());
    }

    #[test]
    fn the_text_names_verb_kind_key_and_what_the_server_said() {
        let error = refused(409, "Conflict", "the object has been modified");
        assert_eq!(
            error.to_string(),
            "cannot update configmaps/v1 web/front: the object has been modified (409 Conflict)"
        );
    }
}
