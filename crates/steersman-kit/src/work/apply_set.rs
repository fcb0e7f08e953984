// SPDX-License-Identifier: Apache-2.0
//! Apply sets of a reconciled object.

use steersman_core::error_chain;
use tracing::{Instrument, debug_span};

use super::{Work, outcome::Severity};
use crate::{
    ApplyPlan, ApplyReport, ApplySet, ApplySetError, ConditionOf, DeletesMembers, InventoryIn, KindList,
    KindReconciler, apply_set::run::SetRun, children::described, status_handler::earliest,
};

impl<R: KindReconciler> Work<R> {
    /// Applies the objects of a set, deletes the members that left it, and sets the condition from the readiness of the members.
    ///
    /// The condition is that of the worst member, as with [`child`](Self::child). A kind whose former members cannot be deleted
    /// sets it to `Unknown`, with the reason `PruneDelayed`.
    ///
    /// An error does not end the reconcile: the whole reconcile fails at its end. Returns `None` if nothing was applied.
    ///
    /// An object that moves from the set to a [child](Self::child) is kept if the child is named before the set.
    ///
    /// An object has one set: a reconcile that calls this twice for one object prunes the members of the first call.
    ///
    /// # Cancel safety
    /// If dropped midway, the outcome of a write is unknown. The next reconcile continues.
    pub async fn apply_set(
        &mut self,
        condition: ConditionOf<R>,
        set: &ApplySet<R::Children>,
    ) -> Option<ApplyReport>
    where
        R::Finalizer: DeletesMembers<R>,
    {
        let run = self.set_run(R::Finalizer::INVENTORY, Some(set));
        let applying = run.apply(&set.members);
        let span = debug_span!("apply_set", members = set.len());
        let mut report = match applying.instrument(span).await {
            Ok(report) => report,
            Err(error) => {
                self.note(condition, Severity::Bad, "Failed", &error_chain(&error));
                self.add_failure(error.into());
                return None;
            }
        };
        for member in &mut report.members {
            self.named.insert(member.id.clone());
            if !member.is_live() {
                self.tracked.add_dynamic(&member.id.0, &member.id.1);
            }
            match &member.result {
                Ok(settled) => {
                    self.note_withheld(&member.id, settled);
                    let own = member.own_readiness.clone();
                    self.conclude(condition, &member.id, settled, own, member.is_optional);
                }
                Err(error) => {
                    let name = described(&member.id.0, &member.id.1);
                    let message = format!("{name}: {}", error_chain(error));
                    self.note(condition, Severity::Bad, "Failed", &message);
                }
            }
        }
        // Objects of a kind that is not installed do not exist.
        for delay in report.delayed().iter().filter(|delay| !delay.is_absent) {
            let message = format!(
                "cannot delete former members of kind {}: {}",
                delay.kind, delay.reason
            );
            self.note(condition, Severity::Unknown, "PruneDelayed", &message);
        }
        if report.members.is_empty() {
            self.note(condition, Severity::Good, "", "");
        }
        self.handled.action = earliest(self.handled.action, report.action());
        match report.into_result() {
            Ok(report) => Some(report),
            Err(error) => {
                self.add_failure(error.into());
                None
            }
        }
    }

    /// Computes the changes that [`apply_set`](Self::apply_set) would make, without writing.
    ///
    /// # Errors
    /// When a request fails.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn plan_apply_set(&self, set: &ApplySet<R::Children>) -> Result<ApplyPlan, ApplySetError>
    where
        R::Finalizer: DeletesMembers<R>,
    {
        self.set_run(R::Finalizer::INVENTORY, Some(set))
            .plan(&set.members)
            .await
    }

    /// Deletes all members of the set.
    pub(crate) async fn delete_apply_set(&self, place: InventoryIn) -> Result<(), ApplySetError> {
        self.set_run(place, None).delete().await?;
        Ok(())
    }

    fn set_run(&self, place: InventoryIn, set: Option<&ApplySet<R::Children>>) -> SetRun {
        let mut watched = match set {
            Some(set) => set.watched(),
            None => R::Children::resources()
                .into_iter()
                .map(|(resource, _)| resource)
                .collect(),
        };
        watched.extend(self.dynamic_kinds.iter().map(|kind| kind.resource.clone()));
        SetRun::new(&self.children, place, watched).keeping(&self.named)
    }
}
