// SPDX-License-Identifier: Apache-2.0
//! What follows for a controller from how its sources stand.

use crate::{
    ControllerError, RequestKey, RunnableStatus,
    controller::Plan,
    source::{AnySource, SourceState},
};

/// How all sources together stand.
#[derive(Default)]
pub(super) struct SourceSummary {
    /// The names of those that have not enqueued what is there.
    waiting: Vec<String>,
    /// Whether one of them waits for the default cluster, and not only for others.
    waits_here: bool,
    /// Whether one of them has to, before anything is worked on.
    is_held_up: bool,
    /// The same for one that waits for other clusters than the default one, which is waited for no longer than the limit.
    is_held_up_elsewhere: bool,
    troubles: Vec<String>,
    /// Those of clusters that are not the default one.
    troubles_elsewhere: Vec<String>,
    absent: Option<String>,
}

/// What is known of a source before it runs.
pub(super) struct Known {
    name: String,
    /// Its clusters are waited for one by one, by their own keys.
    is_everywhere: bool,
}

impl SourceSummary {
    /// Whether something has to be waited for before anything is worked on. What depends on a cluster that is not the default
    /// one, and is late, holds up nothing else: reconciles that read from it fail and are retried when it is in sync.
    pub(super) fn is_held_up(&self, is_late: bool) -> bool {
        self.is_held_up || (self.is_held_up_elsewhere && !is_late)
    }

    /// Whether the controller gives up.
    pub(super) fn refuse<R: RequestKey>(&self, plan: &Plan<R>, is_late: bool) -> Result<(), ControllerError> {
        let controller = || plan.name.to_string();
        let is_strict = plan.options.is_strict();
        match &self.absent {
            Some(kind) if is_late || is_strict => Err(ControllerError::Absent {
                controller: controller(),
                kind: kind.clone(),
            }),
            _ if is_strict && !self.all_troubles().is_empty() => Err(ControllerError::Source {
                controller: controller(),
                reason: self.all_troubles().join("; "),
            }),
            _ if is_strict && is_late && !self.waiting.is_empty() => Err(ControllerError::Source {
                controller: controller(),
                reason: format!("{} not in sync in time", self.waiting.join(", ")),
            }),
            _ => Ok(()),
        }
    }

    /// Trouble elsewhere holds readiness until everything was in sync once, or had its time.
    pub(super) fn standing(&self, is_late: bool) -> RunnableStatus {
        let (waits, troubles) = (!self.waiting.is_empty(), self.all_troubles());
        let has_trouble = !troubles.is_empty();
        let reason = match has_trouble {
            true => troubles.join("; "),
            false => format!("{} not in sync in time", self.waiting.join(", ")),
        };
        let is_degraded = match is_late {
            true => self.waits_here,
            false => waits && has_trouble,
        };
        match (waits, has_trouble) {
            _ if is_degraded || !self.troubles.is_empty() => RunnableStatus::Degraded { reason },
            (false, false) => RunnableStatus::Ready,
            (true, false) if !is_late => RunnableStatus::Waiting {
                on: self.waiting.clone(),
            },
            _ => RunnableStatus::Impaired { reason },
        }
    }

    fn all_troubles(&self) -> Vec<&str> {
        let all = self.troubles.iter().chain(&self.troubles_elsewhere);
        all.map(String::as_str).collect()
    }
}

impl Known {
    /// What reconciles read beside what the sources watch.
    pub(super) fn cached_reads() -> Self {
        Self {
            name: "cached reads".to_owned(),
            is_everywhere: true,
        }
    }

    pub(super) fn of<R: RequestKey>(source: &AnySource<R>) -> Self {
        Self {
            name: source.name(),
            is_everywhere: source.is_everywhere(),
        }
    }
}

pub(super) fn judge(sources: &[Known], states: &[SourceState]) -> SourceSummary {
    let mut verdict = SourceSummary::default();
    for (source, state) in sources.iter().zip(states) {
        if !state.has_been_ready() {
            verdict.waiting.push(source.name.clone());
            let is_elsewhere = matches!(
                state,
                SourceState::WaitingElsewhere | SourceState::TroubleElsewhere { .. }
            );
            let is_held_up = match is_elsewhere {
                true => &mut verdict.is_held_up_elsewhere,
                false => &mut verdict.is_held_up,
            };
            *is_held_up |= !source.is_everywhere;
        }
        match state {
            SourceState::Ready | SourceState::WaitingElsewhere | SourceState::Dormant { .. } => {}
            SourceState::Waiting => verdict.waits_here = true,
            SourceState::TroubleElsewhere { reason, .. } => verdict.troubles_elsewhere.push(reason.clone()),
            SourceState::Trouble {
                reason,
                absent,
                was_ready,
            } => {
                verdict.troubles.push(reason.clone());
                if *absent && !was_ready {
                    verdict.absent.get_or_insert_with(|| source.name.clone());
                }
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    // D16
    #[test]
    fn a_source_of_another_cluster_holds_up_the_controller_no_longer_than_the_limit() {
        let source = || Known {
            name: "secrets".to_owned(),
            is_everywhere: false,
        };
        let trouble = SourceState::TroubleElsewhere {
            reason: "unreachable".to_owned(),
            was_ready: false,
        };
        for state in [SourceState::WaitingElsewhere, trouble] {
            let verdict = judge(&[source()], &[state]);
            assert!(verdict.is_held_up(false) && !verdict.is_held_up(true));
        }
        let verdict = judge(&[source()], &[SourceState::Waiting]);
        assert!(verdict.is_held_up(true), "the default cluster is waited for");
    }
}
