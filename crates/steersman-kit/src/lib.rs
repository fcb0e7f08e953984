// SPDX-License-Identifier: Apache-2.0
//! Operators from beginning to end: a reconciler states the children and the status that an object should have.
//!
//! Implement [`KindReconciler`] and pass it to a controller with [`managed`]. The kit reads the object, reconciles the
//! children, computes the conditions, and writes the status if it differs.

// The derive macros name the kit by this path, also in its own tests.
extern crate self as steersman_kit;

mod apply_set;
mod child_call;
mod children;
mod conditions;
mod defaults;
mod external;
mod finalizer;
mod kinds;
mod lint;
mod managed;
mod projection;
mod readiness;
mod reconciler;
mod status;
mod status_handler;
mod status_write;
mod storage_migrator;
mod switches;
mod validate;
mod work;

pub use apply_set::{
    ApplyPlan, ApplyReport, ApplySet, ApplySetError, ApplySetParent, ApplySets, DeletesApplySet,
    DeletesMembers, FieldChange, Generating, InventoryIn, PlannedAction, PlannedChange, PruneDelay,
    generating,
};
pub use child_call::ChildCall;
pub use children::{ChildError, ChildMemory, ChildRules, ChildState, Children};
pub use conditions::{ConditionList, ConditionSet, ConditionStatus, Conditions, NoConditions, ObservedAt};
pub use defaults::Defaults;
pub use external::{External, ExternalError, ExternalId, ExternalResource, ExternalState, Observation};
pub use finalizer::{Cleaned, Cleanup, FinalizerMode, NoCleanup, RunsCleanup};
pub use kinds::{
    At, Beside, ChildKind, Entry, KindList, KindVisitor, Lists, Nowhere, Optional, OptionalAt, Undeclared,
};
pub use lint::{LintFinding, lint_status, lint_status_change};
pub use managed::{Managed, managed};
pub use readiness::{Readiness, readiness};
pub use reconciler::{ConditionOf, KindReconciler};
pub use status::{NoStatus, StatusFor, StatusParts};
pub use status_handler::StatusHandler;
pub use status_write::{StatusError, StatusWrite, apply_status, update_status};
pub use steersman_kit_derive::{ConditionSet, Status};
pub use storage_migrator::StorageMigrator;
pub use switches::Switches;
pub use validate::{FieldError, Validate, ValidationReport};
pub use work::Work;

/// Names for the code that derive macros generate.
#[doc(hidden)]
pub mod __private {
    pub use kube::core::object::HasStatus;
}
