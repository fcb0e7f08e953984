// SPDX-License-Identifier: Apache-2.0
//! A child that is about to be reconciled.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{ConditionOf, KindReconciler, Work};

/// A child that is reconciled when this is awaited; from [`Work::child`].
#[must_use = "a child is reconciled when this is awaited"]
pub struct ChildCall<'w, R: KindReconciler, C> {
    pub(crate) work: &'w mut Work<R>,
    pub(crate) condition: ConditionOf<R>,
    pub(crate) child: C,
    pub(crate) optional: bool,
    rules: Rules<C>,
}

type IsTrue<C> = Box<dyn Fn(&C) -> bool + Send + Sync>;
type Differs<C> = Box<dyn Fn(&C, &C) -> bool + Send + Sync>;

struct Rules<C> {
    ignored: Vec<String>,
    adopts_orphans: bool,
    ready_if: Option<IsTrue<C>>,
    recreate_if: Option<Differs<C>>,
}

impl<'w, R: KindReconciler, C> ChildCall<'w, R, C> {
    pub(crate) fn new(work: &'w mut Work<R>, condition: ConditionOf<R>, child: C, optional: bool) -> Self {
        let rules = Rules {
            ignored: Vec::new(),
            adopts_orphans: false,
            ready_if: None,
            recreate_if: None,
        };
        Self {
            work,
            condition,
            child,
            optional,
            rules,
        }
    }

    /// Sets the field at this JSON pointer only when the child is created, and leaves it to others afterwards, such as
    /// `/spec/replicas` to an autoscaler.
    pub fn ignore(mut self, pointer: impl Into<String>) -> Self {
        self.rules.ignored.push(pointer.into());
        self
    }

    /// Takes over an object of this name that no controller owns. Default: such an object is foreign.
    pub fn adopt_orphans(mut self) -> Self {
        self.rules.adopts_orphans = true;
        self
    }

    /// Decides whether the child is ready. Default: the rules of kstatus.
    pub fn ready_if(mut self, is_ready: impl Fn(&C) -> bool + Send + Sync + 'static) -> Self {
        self.rules.ready_if = Some(Box::new(is_ready));
        self
    }

    /// Deletes and creates the child again if this returns true for the live and the desired child. Use it for fields that
    /// cannot be changed. Default: never.
    pub fn recreate_if(mut self, has_to: impl Fn(&C, &C) -> bool + Send + Sync + 'static) -> Self {
        self.rules.recreate_if = Some(Box::new(has_to));
        self
    }
}

impl<'w, R, C> IntoFuture for ChildCall<'w, R, C>
where
    R: KindReconciler,
    C: kube::Resource + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
{
    /// The live child; `None` if it is foreign, being deleted, not installed, or the request failed.
    type Output = Option<Arc<C>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'w>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { None })
    }
}

impl<R: KindReconciler, C> fmt::Debug for ChildCall<'_, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildCall").finish_non_exhaustive()
    }
}
