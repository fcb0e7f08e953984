// SPDX-License-Identifier: Apache-2.0
//! One reconcile of one object: its status, its conditions and its children.
//!
//! # Guarantees
//! 1. A child that fails sets its condition and makes the reconcile fail at its end. The next child is reconciled all the same.
//! 2. Of several children with one condition, the worst state of this reconcile counts.
//! 3. The state of a foreign object is never returned, so it cannot get into the status of the parent.

mod apply_set;
mod outcome;

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Display},
    marker::PhantomData,
    sync::Arc,
};

use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
use steersman_cache::Resource;
use steersman_cluster::Error;
use steersman_core::ObjectKey;
use steersman_runtime::{BoxError, Context, KnownKind, Request, Tracking};

use self::outcome::Severity;
use crate::{
    Beside, ChildCall, ChildKind, Children, ConditionOf, ConditionSet, ConditionStatus, Conditions,
    KindReconciler, Lists, ObservedAt, StatusParts, children::ChildId, status_handler::HandlerResults,
};

/// One reconcile of one object. User code sets the status and the children through it.
pub struct Work<R: KindReconciler> {
    cx: Context,
    status: R::Status,
    at: ObservedAt,
    parent: PartialObjectMeta<DynamicObject>,
    children: Children,
    memory: crate::ChildMemory,
    dynamic_kinds: Arc<[DynamicKind]>,
    is_last_attempt: bool,
    /// Children that an observed object does not write.
    withheld: Vec<String>,
    /// Worst state of each condition that children set in this reconcile.
    concluded: HashMap<&'static str, Severity>,
    /// Conditions that were set in this reconcile.
    set: HashSet<&'static str>,
    named: HashSet<ChildId>,
    tracked: Tracking,
    /// Errors of children and handlers.
    failures: Vec<BoxError>,
    pub(crate) handled: HandlerResults,
}

/// A child kind that is known at run time.
#[derive(Clone, Debug)]
pub(crate) struct DynamicKind {
    pub(crate) resource: Resource,
    pub(crate) is_optional: bool,
}

/// Parts of a [`Work`] that the controller keeps from one reconcile to the next.
pub(crate) struct WorkOptions {
    pub(crate) memory: crate::ChildMemory,
    pub(crate) dynamic_kinds: Arc<[DynamicKind]>,
    pub(crate) is_last_attempt: bool,
}

impl<R: KindReconciler> Work<R> {
    pub(crate) fn new(
        cx: Context,
        status: R::Status,
        at: ObservedAt,
        metadata: &ObjectMeta,
        children: Children,
        options: WorkOptions,
    ) -> Self {
        let parent = PartialObjectMeta {
            types: None,
            metadata: metadata.clone(),
            _phantom: PhantomData,
        };
        Self {
            cx,
            status,
            at,
            parent,
            tracked: options.memory.tracker.begin(children.parent()),
            children,
            memory: options.memory,
            dynamic_kinds: options.dynamic_kinds,
            is_last_attempt: options.is_last_attempt,
            withheld: Vec::new(),
            concluded: HashMap::new(),
            set: HashSet::new(),
            named: HashSet::new(),
            failures: Vec::new(),
            handled: HandlerResults::default(),
        }
    }

    /// The reconciled key.
    #[must_use]
    pub fn request(&self) -> &Request {
        self.children.parent()
    }

    /// The context of the reconcile.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.cx
    }

    /// Returns true if this object is [only observed](crate::Switches): its children are not written. Withhold other writes too.
    #[must_use]
    pub fn is_observe_only(&self) -> bool {
        self.cx.is_observe_only()
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

    /// Returns true if a failure of this reconcile is not retried, because the retry budget is used up; see
    /// [`Managed::retry_budget`](crate::Managed::retry_budget).
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.is_last_attempt
    }

    /// Sets a condition to `True`.
    pub fn set_true(&mut self, condition: ConditionOf<R>) {
        let at = self.at;
        self.set.insert(condition.name());
        self.status.conditions_mut().set_true(condition, at);
    }

    /// Sets a condition to `False`.
    pub fn set_false(&mut self, condition: ConditionOf<R>, reason: &str, message: impl Display) {
        self.set(condition, ConditionStatus::False, reason, message);
    }

    /// Sets a condition to `Unknown`.
    pub fn set_unknown(&mut self, condition: ConditionOf<R>, reason: &str, message: impl Display) {
        self.set(condition, ConditionStatus::Unknown, reason, message);
    }

    /// Sets a condition; for a negative one, which is `True` for a reason.
    pub fn set(
        &mut self,
        condition: ConditionOf<R>,
        status: ConditionStatus,
        reason: &str,
        message: impl Display,
    ) {
        let at = self.at;
        self.set.insert(condition.name());
        let conditions = self.status.conditions_mut();
        conditions.set(condition, status, reason, &message.to_string(), at);
    }

    /// Marks the work on this object as stalled, with the condition `Stalled` of kstatus: retries cannot succeed. It lasts until
    /// the next reconcile, and has an effect only with `#[conditions(kstatus)]`. The kit calls it for an error that is not
    /// retried: a [terminal](steersman_runtime::terminal) one, and the last of the retry budget.
    pub fn set_stalled(&mut self, reason: &str, message: impl Display) {
        let conditions = self.status.conditions_mut();
        conditions.set_stalled(reason, &message.to_string());
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
    /// | the child | condition | reason |
    /// |---|---|---|
    /// | is ready | `True` | name of the condition |
    /// | is in progress | `Unknown` | of its [readiness](crate::readiness()) |
    /// | failed | `False` | of its readiness |
    /// | is an object of someone else | `False` | `NotOwned` |
    /// | is being deleted | `Unknown` | `Terminating` |
    /// | is of a kind that is not installed | `False`, or `Unknown` for [`Optional`](crate::Optional) kinds | `NotInstalled` |
    /// | cannot be written | `False` | `Failed` |
    /// | is not written, because the object is [only observed](crate::Switches) | `Unknown` | `ObserveOnly` |
    ///
    /// An error does not end the reconcile: the next child is reconciled, and the whole reconcile fails at its end.
    pub fn child<C, I>(&mut self, condition: ConditionOf<R>, child: C) -> ChildCall<'_, R, C>
    where
        C: ChildKind<Scope: Beside<<R::Kind as kube::Resource>::Scope>>,
        R::Children: Lists<C, I>,
    {
        let is_optional = <R::Children as Lists<C, I>>::OPTIONAL;
        ChildCall::new(self, condition, Resource::of::<C>(), child, is_optional)
    }

    /// As [`child`](Self::child), in a namespace: for namespaced children of a cluster-scoped parent.
    ///
    /// A parent cannot own an object in another namespace than its own; that sets the condition to `False`.
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
        let is_optional = <R::Children as Lists<C, I>>::OPTIONAL;
        ChildCall::new(self, condition, Resource::of::<C>(), child, is_optional)
    }

    /// As [`child`](Self::child), for a kind that is known at run time. Declare the kind with
    /// [`Managed::owns_dynamic`](crate::Managed::owns_dynamic).
    pub fn dynamic_child(
        &mut self,
        condition: ConditionOf<R>,
        resource: &Resource,
        child: DynamicObject,
    ) -> ChildCall<'_, R, DynamicObject> {
        let declared = self.dynamic_kinds.iter().find(|kind| kind.resource == *resource);
        let is_optional = declared.is_some_and(|kind| kind.is_optional);
        let is_declared = declared.is_some();
        let mut call = ChildCall::new(self, condition, resource.clone(), child, is_optional);
        call.parts.is_declared = is_declared;
        call
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
        self.cx.owned(&self.parent).await
    }

    /// Reconciles the parent when this object of a child kind changes, although the parent does not own it. It is in force until
    /// a reconcile does not repeat it. Call it before you read the object.
    pub fn track<K: KnownKind, I>(&mut self, key: &ObjectKey)
    where
        R::Children: Lists<K, I>,
    {
        self.tracked.add::<K>(key);
    }
}

impl<R: KindReconciler> fmt::Debug for Work<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("request", self.request())
            .finish_non_exhaustive()
    }
}
