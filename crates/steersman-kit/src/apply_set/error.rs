// SPDX-License-Identifier: Apache-2.0
//! Errors of apply sets.

use steersman_cluster::Error;

use crate::ChildError;

/// An apply set could not be reconciled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplySetError {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] Error),
    /// The parent has no uid, or a member is of a kind that cannot be resolved.
    #[error(transparent)]
    Member(#[from] ChildError),
    /// Members could not be applied. Nothing was pruned.
    #[error("cannot apply {count} members of the set; nothing was pruned; one of them is {member}")]
    Apply {
        /// Number of members that could not be applied.
        count: usize,
        /// Kind and name of one of them.
        member: String,
        /// Its error.
        #[source]
        source: Box<ChildError>,
    },
    /// The set names an object twice.
    #[error("the apply set names {member} twice")]
    Duplicate {
        /// Kind and name of the member.
        member: String,
    },
    /// Another tool uses the object for its own apply set.
    #[error(
        "cannot store an apply set on {object}: {tool} manages a set there; choose another place with `InventoryIn::config_map`"
    )]
    OtherTool {
        /// Kind and name of the object that has the inventory.
        object: String,
        /// Value of its annotation `applyset.kubernetes.io/tooling`.
        tool: String,
    },
    /// The object that has the inventory was deleted or replaced, or does not belong to the parent.
    #[error("cannot store an apply set on {object}: it was deleted, or it does not belong to the parent")]
    InventoryReplaced {
        /// Kind and name of the object that has the inventory.
        object: String,
    },
    /// Other clients changed the object that has the inventory again and again.
    #[error("cannot store an apply set on {object}: other clients changed it several times meanwhile")]
    Contended {
        /// Kind and name of the object that has the inventory.
        object: String,
    },
    /// An object cannot be encoded as JSON.
    #[error("cannot encode {object} as JSON")]
    Encode {
        /// Kind and name of the object.
        object: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The set cannot be deleted yet, because some of its members cannot be found.
    #[error("cannot delete the members of kind {kind}: {reason}")]
    Delete {
        /// The kind.
        kind: String,
        /// Cause.
        reason: String,
    },
}

impl ApplySetError {
    pub(crate) fn encode(object: &str) -> impl FnOnce(serde_json::Error) -> Self + use<> {
        let object = object.to_owned();
        |source| Self::Encode { object, source }
    }
}
