// SPDX-License-Identifier: Apache-2.0
//! Errors of reconciling a child.

use steersman_cache::DecodeError;
use steersman_cluster::{Error, MapError};

/// A child could not be reconciled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// The live child does not decode as the type of the child.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The scope of a dynamic kind is not known.
    #[error(transparent)]
    Scope(#[from] MapError),
    /// The child cannot be encoded as JSON.
    #[error("cannot encode {child} as JSON")]
    Encode {
        /// Kind and name of the child.
        child: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The child has no name.
    #[error("cannot reconcile a child of kind {kind}: it has no name; `generateName` is not supported")]
    NoName {
        /// Kind of the child.
        kind: String,
    },
    /// The parent has no uid because it was not read from a server.
    #[error(
        "cannot reconcile children of `{parent}`: it has no uid; use an object that the server has returned"
    )]
    NoUid {
        /// The parent.
        parent: String,
    },
    /// The child cannot have an owner reference to its parent.
    #[error("cannot own {child}: {reason}; use `Work::apply_set` or `ApplySets` instead of a child")]
    CannotOwn {
        /// Kind and name of the child.
        child: String,
        /// The rule of Kubernetes that forbids it.
        reason: String,
    },
    /// A namespaced member of an apply set has no namespace, and its parent has none either.
    #[error("cannot apply {child}: it is namespaced and has no namespace; set its `metadata.namespace`")]
    NoNamespace {
        /// Kind and name of the object.
        child: String,
    },
    /// A dynamic kind that the reconciler did not declare.
    #[error("cannot reconcile {child}: its kind is not declared; call `managed(…).owns_dynamic(…)`")]
    Undeclared {
        /// Kind and name of the child.
        child: String,
    },
    /// Other clients changed the child again and again.
    #[error("cannot reconcile {child}: other clients replaced it several times meanwhile")]
    Contended {
        /// Kind and name of the child.
        child: String,
    },
}

impl ChildError {
    /// Reports whether the namespace of the child is being deleted, in which nothing can be created.
    #[must_use]
    pub fn is_namespace_terminating(&self) -> bool {
        let Self::Request(error) = self else {
            return false;
        };
        let details = error.status().and_then(|status| status.details.as_ref());
        let mut causes = details.into_iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.reason == "NamespaceTerminating")
    }
}
