// SPDX-License-Identifier: Apache-2.0
//! A child that is about to be reconciled.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};
use steersman_cache::Resource;
use tracing::{Instrument, debug_span};

use crate::{ChildRules, ConditionOf, KindReconciler, Work};

/// A child that is reconciled when this is awaited; from [`Work::child`].
#[must_use = "a child is reconciled when this is awaited"]
pub struct ChildCall<'w, R: KindReconciler, C> {
    work: &'w mut Work<R>,
    pub(crate) parts: CallParts<R, C>,
}

/// A call without its [`Work`].
pub(crate) struct CallParts<R: KindReconciler, C> {
    pub(crate) condition: ConditionOf<R>,
    pub(crate) resource: Resource,
    pub(crate) child: C,
    pub(crate) is_optional: bool,
    /// False for a dynamic kind that the reconciler did not declare.
    pub(crate) is_declared: bool,
    pub(crate) rules: ChildRules<C>,
    pub(crate) ready_if: Option<IsReady<C>>,
}

type IsReady<C> = Box<dyn Fn(&C) -> bool + Send + Sync>;

impl<'w, R: KindReconciler, C> ChildCall<'w, R, C> {
    pub(crate) fn new(
        work: &'w mut Work<R>,
        condition: ConditionOf<R>,
        resource: Resource,
        child: C,
        is_optional: bool,
    ) -> Self {
        let parts = CallParts {
            condition,
            resource,
            child,
            is_optional,
            is_declared: true,
            rules: ChildRules::new(),
            ready_if: None,
        };
        Self { work, parts }
    }

    /// Sets the field at this JSON pointer only when the child is created, and leaves it to others afterwards, such as
    /// `/spec/replicas` to an autoscaler.
    pub fn ignore(mut self, pointer: impl Into<String>) -> Self {
        self.parts.rules = self.parts.rules.ignore(pointer);
        self
    }

    /// Takes over an object of this name that no controller owns. Default: such an object is foreign.
    pub fn adopt_orphans(mut self) -> Self {
        self.parts.rules = self.parts.rules.adopt_orphans();
        self
    }

    /// Decides whether the child is ready. Default: the rules of kstatus; see [`readiness`](crate::readiness()).
    pub fn ready_if(mut self, is_ready: impl Fn(&C) -> bool + Send + Sync + 'static) -> Self {
        self.parts.ready_if = Some(Box::new(is_ready));
        self
    }

    /// Deletes the child, and creates it again, if this returns true for the live and the desired child. Use it for fields that
    /// cannot be changed. Compare only such fields: the live child has the defaults of the server. Default: never.
    pub fn recreate_if(mut self, differs: impl Fn(&C, &C) -> bool + Send + Sync + 'static) -> Self {
        self.parts.rules = self.parts.rules.recreate_if(differs);
        self
    }
}

impl<'w, R, C> IntoFuture for ChildCall<'w, R, C>
where
    R: KindReconciler,
    C: kube::Resource + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
{
    /// The live child; `None` if it is foreign, being deleted, not installed, or a request failed.
    type Output = Option<Arc<C>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'w>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { work, parts } = self;
        let span = debug_span!(
            "child",
            kind = parts.resource.kind(),
            name = parts.child.meta().name
        );
        Box::pin(work.reconcile_child(parts).instrument(span))
    }
}

impl<R: KindReconciler, C> fmt::Debug for ChildCall<'_, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildCall")
            .field("resource", &self.parts.resource)
            .field("rules", &self.parts.rules)
            .finish_non_exhaustive()
    }
}
