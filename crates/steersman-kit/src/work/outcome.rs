// SPDX-License-Identifier: Apache-2.0
//! From the states of children to conditions, and from a reconcile to its status and result.

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_cache::Object;
use steersman_cluster::ObjectExt;
use steersman_core::{ObjectKey, error_chain};

use super::Work;
use crate::{
    ChildError, ConditionOf, ConditionSet, ConditionStatus, KindReconciler, Readiness, StatusParts,
    child_call::CallParts,
    children::{ChildId, Settled, described},
    readiness,
};

/// State that a child gives to its condition, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    Good,
    Unknown,
    Bad,
}

/// A child that failed, and how many others.
#[derive(Debug, thiserror::Error)]
#[error("cannot reconcile {count} of the children; the first error follows")]
pub(crate) struct ChildrenFailed {
    count: usize,
    #[source]
    first: ChildError,
}

impl<R: KindReconciler> Work<R> {
    /// Reconciles a child and sets its condition.
    pub(crate) async fn reconcile_child<C>(&mut self, call: CallParts<R, C>) -> Option<Arc<C>>
    where
        C: kube::Resource + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
    {
        let condition = call.condition;
        let mut id = (call.resource.clone(), call.child.key());
        match self.settled(&call, &mut id).await {
            Ok((settled, live)) => {
                self.conclude(condition, &id, &settled, live.as_deref(), &call);
                live
            }
            Err(error) => {
                let message = format!("{}: {}", described(&id.0, &id.1), error_chain(&error));
                self.note(condition, Severity::Bad, "Failed", &message);
                self.failures.push(error);
                None
            }
        }
    }

    async fn settled<C>(
        &mut self,
        call: &CallParts<R, C>,
        id: &mut ChildId,
    ) -> Result<(Settled, Option<Arc<C>>), ChildError>
    where
        C: kube::Resource + Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
    {
        if !call.is_declared {
            return Err(ChildError::Undeclared {
                child: described(&id.0, &id.1),
            });
        }
        let resource = match self.children.scoped(&call.resource).await {
            Err(ChildError::Scope(_)) if call.is_optional => return Ok((Settled::NotInstalled, None)),
            resource => resource?,
        };
        let parent = self.children.parent().key();
        // The key under which the state of the child is kept.
        match resource.is_namespaced() {
            Some(true) if id.1.namespace().is_empty() => {
                id.1 = ObjectKey::new(parent.namespace(), id.1.name())
            }
            Some(false) => id.1 = ObjectKey::new("", id.1.name()),
            _ => {}
        }
        id.0 = resource;
        self.named.insert(id.clone());
        let settled = self
            .children
            .reconcile_as(&id.0, &call.child, &call.rules)
            .await?;
        match &settled {
            Settled::Live(object) => {
                let live = object.decoded::<C>()?;
                Ok((settled, Some(live)))
            }
            _ => {
                // Foreign objects, and those of a former parent, do not enqueue this parent by their owner.
                self.tracked.insert(id.clone());
                Ok((settled, None))
            }
        }
    }

    fn conclude<C>(
        &mut self,
        condition: ConditionOf<R>,
        id: &ChildId,
        settled: &Settled,
        live: Option<&C>,
        call: &CallParts<R, C>,
    ) {
        let name = described(&id.0, &id.1);
        match settled {
            Settled::Live(object) => {
                let found = match (&call.ready_if, live) {
                    (Some(is_ready), Some(live)) if is_ready(live) => Readiness::Ready,
                    (Some(_), _) => Readiness::in_progress("NotReady", "not ready yet"),
                    (None, _) => self.readiness(id, object),
                };
                match found {
                    Readiness::Ready => self.note(condition, Severity::Good, "", ""),
                    Readiness::InProgress { reason, message } => {
                        self.note(
                            condition,
                            Severity::Unknown,
                            &reason,
                            &format!("{name}: {message}"),
                        );
                    }
                    Readiness::Failed { reason, message } => {
                        self.note(condition, Severity::Bad, &reason, &format!("{name}: {message}"));
                    }
                    Readiness::Terminating => self.note_terminating(condition, &name),
                }
            }
            Settled::Foreign => {
                let message = format!("{name} exists and does not belong to this object");
                self.note(condition, Severity::Bad, "NotOwned", &message);
            }
            Settled::Terminating => self.note_terminating(condition, &name),
            Settled::NotInstalled => {
                let severity = match call.is_optional {
                    true => Severity::Unknown,
                    false => Severity::Bad,
                };
                let message = format!("the cluster does not have the kind {}", id.0.kind());
                self.note(condition, severity, "NotInstalled", &message);
            }
        }
    }

    fn note_terminating(&mut self, condition: ConditionOf<R>, name: &str) {
        let message = format!("{name} is being deleted, and is created again afterwards");
        self.note(condition, Severity::Unknown, "Terminating", &message);
    }

    fn readiness(&self, id: &ChildId, object: &Object) -> Readiness {
        let compute = || {
            let value: Value = serde_json::from_slice(object.bytes()).unwrap_or_default();
            readiness(id.0.group(), id.0.kind(), &value)
        };
        self.memory.readiness(self.children.parent(), id, object, compute)
    }

    /// Sets a condition from the state of a child, unless another child gave it a worse one.
    fn note(&mut self, condition: ConditionOf<R>, severity: Severity, reason: &str, message: &str) {
        let worst = self.concluded.get(condition.name());
        if worst.is_some_and(|worst| *worst >= severity) {
            return;
        }
        self.concluded.insert(condition.name(), severity);
        let status = match (severity, condition.negative()) {
            (Severity::Good, false) => return self.set_true(condition),
            (Severity::Unknown, _) => ConditionStatus::Unknown,
            (Severity::Good, true) | (Severity::Bad, false) => ConditionStatus::False,
            (Severity::Bad, true) => ConditionStatus::True,
        };
        let reason = if reason.is_empty() { "Ready" } else { reason };
        self.set(condition, status, reason, message);
    }

    /// Ends the work: forgets children that were not named, and completes the conditions. Returns the status to be written and
    /// the failures of children.
    pub(crate) fn finish(mut self) -> (R::Status, Result<(), ChildrenFailed>) {
        let parent = self.children.parent();
        self.memory.retain(parent, &self.named);
        self.memory
            .tracker
            .replace(parent, std::mem::take(&mut self.tracked));
        self.status.set_observed_generation(self.at.generation());
        self.status.conditions_mut().summarise(self.at);
        let count = self.failures.len();
        let failed = match self.failures.into_iter().next() {
            Some(first) => Err(ChildrenFailed { count, first }),
            None => Ok(()),
        };
        (self.status, failed)
    }
}
