// SPDX-License-Identifier: Apache-2.0
//! From the states of children to conditions, and from a reconcile to its status and result.

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use steersman_cache::Object;
use steersman_cluster::ObjectExt;
use steersman_core::error_chain;
use steersman_runtime::{BoxError, is_terminal};

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

/// Several children or handlers failed, of which this is one.
#[derive(Debug, thiserror::Error)]
#[error("{count} children or handlers failed; one of them")]
struct SeveralFailed {
    count: usize,
    #[source]
    one: BoxError,
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
                let own = call.ready_if.as_ref().map(|is_ready| match &live {
                    Some(live) if is_ready(live) => Readiness::Ready,
                    _ => Readiness::in_progress("NotReady", "not ready yet"),
                });
                self.conclude(condition, &id, &settled, own, call.is_optional);
                live
            }
            Err(error) => {
                let message = format!("{}: {}", described(&id.0, &id.1), error_chain(&error));
                self.note(condition, Severity::Bad, "Failed", &message);
                self.add_failure(error.into());
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
        *id = self.children.id_of(&resource, call.child.meta());
        self.named.insert(id.clone());
        let settled = self.children.reconcile_as(id, &call.child, &call.rules).await?;
        match &settled {
            Settled::Live(object) => {
                let live = object.decoded::<C>()?;
                Ok((settled, Some(live)))
            }
            Settled::Withheld(live) => {
                self.tracked.add_dynamic(&id.0, &id.1);
                self.note_withheld(id, &settled);
                let live = live.as_ref().map(|live| live.decoded::<C>()).transpose()?;
                Ok((settled, live))
            }
            _ => {
                // Foreign objects, and those of a former parent, do not enqueue this parent by their owner.
                self.tracked.add_dynamic(&id.0, &id.1);
                Ok((settled, None))
            }
        }
    }

    /// Sets a condition from the state of a child. `own` is its readiness by user code.
    pub(super) fn conclude(
        &mut self,
        condition: ConditionOf<R>,
        id: &ChildId,
        settled: &Settled,
        own: Option<Readiness>,
        is_optional: bool,
    ) {
        let name = || described(&id.0, &id.1);
        match settled {
            Settled::Live(object) => {
                let found = own.unwrap_or_else(|| self.readiness(id, object));
                match found {
                    Readiness::Ready => self.note(condition, Severity::Good, "", ""),
                    Readiness::InProgress { reason, message } => {
                        let message = format!("{}: {message}", name());
                        self.note(condition, Severity::Unknown, &reason, &message);
                    }
                    Readiness::Failed { reason, message } => {
                        let message = format!("{}: {message}", name());
                        self.note(condition, Severity::Bad, &reason, &message);
                    }
                    Readiness::Terminating => self.note_terminating(condition, &name()),
                }
            }
            Settled::Foreign => {
                let message = format!("{} exists and does not belong to this object", name());
                self.note(condition, Severity::Bad, "NotOwned", &message);
            }
            Settled::Terminating => self.note_terminating(condition, &name()),
            Settled::Withheld(live) => {
                let write = if live.is_some() { "changed" } else { "created" };
                let message = format!("{} would be {write}", name());
                self.note(condition, Severity::Unknown, "ObserveOnly", &message);
            }
            Settled::NotInstalled => {
                let severity = match is_optional {
                    true => Severity::Unknown,
                    false => Severity::Bad,
                };
                let message = format!("the cluster does not have the kind {}", id.0.kind());
                self.note(condition, severity, "NotInstalled", &message);
            }
        }
    }

    /// Notes a write that is withheld from an object that is only observed.
    pub(super) fn note_withheld(&mut self, id: &ChildId, settled: &Settled) {
        if let Settled::Withheld(live) = settled {
            let write = if live.is_some() { "changed" } else { "created" };
            self.withheld
                .push(format!("{} ({write})", described(&id.0, &id.1)));
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
    pub(super) fn note(
        &mut self,
        condition: ConditionOf<R>,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
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

    /// Takes the children that an observed object does not write.
    pub(crate) fn take_withheld(&mut self) -> Vec<String> {
        std::mem::take(&mut self.withheld)
    }

    /// Adds an error of a child or handler, with which the reconcile fails at its end.
    pub(crate) fn add_failure(&mut self, error: BoxError) {
        self.failures.push(error);
    }

    /// Begins to note whether a condition is set.
    pub(crate) fn forget_set(&mut self, name: &str) {
        self.set.remove(name);
    }

    /// Sets the condition of a handler that succeeded, unless it did that itself.
    pub(crate) fn succeeded(&mut self, condition: ConditionOf<R>) {
        if !self.set.contains(condition.name()) {
            self.note(condition, Severity::Good, "", "");
        }
    }

    /// Sets the condition of a handler that failed, unless it set a reason itself.
    pub(crate) fn failed(&mut self, condition: ConditionOf<R>, reason: &str, message: &str) {
        let bad = match condition.negative() {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        };
        let is_set = self.set.contains(condition.name());
        if !is_set || self.conditions().status(condition) != bad {
            self.concluded.remove(condition.name());
            self.note(condition, Severity::Bad, reason, message);
        }
    }

    /// Ends the work: after a success, forgets children that were not named; completes the conditions. Returns the status to be written, and
    /// the result of the whole reconcile from that of user code.
    pub(crate) fn finish<T>(mut self, result: Result<T, BoxError>) -> (R::Status, Result<T, BoxError>) {
        let failure = self.failure();
        // A failed reconcile might not have reached all children: it forgets none.
        if result.is_ok() && failure.is_none() {
            self.memory.retain(self.children.parent(), &self.named);
            self.tracked.finish();
        }
        let result = match (result, failure) {
            (Ok(_), Some(failure)) => Err(failure),
            // One error that can be retried is enough for a retry.
            (Err(error), Some(failure)) if is_terminal(&error) && !is_terminal(&failure) => Err(failure),
            (result, _) => result,
        };
        if let Err(error) = &result {
            let reason = match (is_terminal(error), self.is_last_attempt) {
                (true, _) => Some("TerminalError"),
                (false, true) => Some("RetriesExhausted"),
                (false, false) => None,
            };
            if let Some(reason) = reason {
                let conditions = self.status.conditions_mut();
                conditions.set_stalled_if_not(reason, &error_chain(&**error));
            }
        }
        self.status.set_observed_generation(self.at.generation());
        self.status.conditions_mut().summarise(self.at);
        (self.status, result)
    }

    /// Returns the first failure that can be retried, otherwise the first one.
    fn failure(&mut self) -> Option<BoxError> {
        let count = self.failures.len();
        let retried = self.failures.iter().position(|error| !is_terminal(error));
        let one = self.failures.drain(..).nth(retried.unwrap_or(0))?;
        Some(match count {
            1 => one,
            _ => SeveralFailed { count, one }.into(),
        })
    }
}
