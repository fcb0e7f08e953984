// SPDX-License-Identifier: Apache-2.0
//! Operators from beginning to end: a reconciler states the children and the status that an object should have.
//!
//! Implement [`KindReconciler`] and pass it to a controller with [`managed`]. The kit reads the object, reconciles the
//! children, computes the conditions, and writes the status if it differs.

mod child_call;
mod conditions;
mod defaults;
mod finalizer;
mod kinds;
mod managed;
mod reconciler;
mod status;
mod work;

pub use child_call::ChildCall;
pub use conditions::{ConditionSet, ConditionStatus, Conditions, NoConditions, ObservedAt};
pub use defaults::Defaults;
pub use finalizer::{Cleaned, Cleanup, FinalizerMode, NoCleanup, RunsCleanup};
pub use kinds::{
    At, Beside, ChildKind, Entry, KindList, KindVisitor, Lists, Nowhere, Optional, OptionalAt, Undeclared,
};
pub use managed::{Managed, managed};
pub use reconciler::{ConditionOf, KindReconciler};
pub use status::{NoStatus, StatusFor, StatusParts};
pub use work::Work;
