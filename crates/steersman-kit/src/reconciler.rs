// SPDX-License-Identifier: Apache-2.0
//! The reconciler of a kind, and what it declares.

use std::future::Future;

use steersman_core::Action;
use steersman_runtime::BoxError;

use crate::{ChildKind, FinalizerMode, KindList, StatusFor, StatusParts, Work};

/// Conditions that a reconciler sets.
pub type ConditionOf<R> = <<R as KindReconciler>::Status as StatusParts>::Set;

/// Reconciles the objects of one kind: states the children and the status of an object. Pass it to a controller with
/// [`managed`](crate::managed).
pub trait KindReconciler: Send + Sync + Sized + 'static {
    /// The reconciled kind.
    type Kind: ChildKind;
    /// The whole status of the kind, the part of it that this controller sets, or [`NoStatus`](crate::NoStatus).
    type Status: StatusFor<Self::Kind>;
    /// Child kinds. They are watched, and [`Work::child`] accepts only these.
    type Children: KindList;
    /// [`NoCleanup`](crate::NoCleanup), or [`RunsCleanup`](crate::RunsCleanup), which requires [`Cleanup`](crate::Cleanup).
    type Finalizer: FinalizerMode<Self>;

    /// Reconciles one object. The object is a copy: changes of its spec or metadata are never written.
    fn reconcile(
        &self,
        object: &Self::Kind,
        work: &mut Work<Self>,
    ) -> impl Future<Output = Result<Action, BoxError>> + Send;

    /// Records the meaning of a failure in the status. It is called for errors of [`reconcile`](Self::reconcile) and of the
    /// cleanup, before the status is written. Default: does nothing.
    fn on_error(&self, error: &BoxError, work: &mut Work<Self>) {
        let _ = (error, work);
    }
}
