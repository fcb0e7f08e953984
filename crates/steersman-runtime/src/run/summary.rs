// SPDX-License-Identifier: Apache-2.0
//! Combines the states of all sources into the status of a controller.

use crate::{
    ControllerError, RequestKey, RunnableStatus,
    controller::Plan,
    source::{AnySource, SourceState},
};

/// Combined state of all sources.
#[derive(Default)]
pub(super) struct SourceSummary {
    /// Names of the sources that are not in sync.
    waiting: Vec<String>,
    /// True if one of them waits for the default cluster.
    waits_here: bool,
    /// True if one of them has to be in sync before any reconcile.
    is_held_up: bool,
    /// As `is_held_up`, for sources that wait only for non-default clusters; they delay the controller no longer than the
    /// limit.
    is_held_up_elsewhere: bool,
    troubles: Vec<String>,
    /// Failures of non-default clusters.
    troubles_elsewhere: Vec<String>,
    absent: Option<String>,
}

/// Static facts about a source.
pub(super) struct SourceInfo {
    name: String,
    /// Its clusters delay only their own keys.
    is_everywhere: bool,
}

impl SourceSummary {
    /// Returns true if reconciles have to wait. A late non-default cluster delays nothing else: reconciles that read from
    /// it fail and are retried when it is in sync.
    pub(super) fn is_held_up(&self, is_late: bool) -> bool {
        self.is_held_up || (self.is_held_up_elsewhere && !is_late)
    }

    /// Fails if the controller has to give up.
    pub(super) fn check<R: RequestKey>(&self, plan: &Plan<R>, is_late: bool) -> Result<(), ControllerError> {
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

    /// Status of the controller. A failing non-default cluster keeps the controller unready until everything was in sync
    /// once or the limit has passed.
    pub(super) fn status(&self, is_late: bool) -> RunnableStatus {
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
            _ => RunnableStatus::PartiallyDegraded { reason },
        }
    }

    fn all_troubles(&self) -> Vec<&str> {
        let all = self.troubles.iter().chain(&self.troubles_elsewhere);
        all.map(String::as_str).collect()
    }
}

impl SourceInfo {
    /// State for kinds that reconciles read without a source.
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

pub(super) fn summarize(sources: &[SourceInfo], states: &[SourceState]) -> SourceSummary {
    let mut summary = SourceSummary::default();
    for (source, state) in sources.iter().zip(states) {
        if !state.has_been_ready() {
            summary.waiting.push(source.name.clone());
            let is_elsewhere = matches!(
                state,
                SourceState::WaitingForOtherCluster | SourceState::OtherClusterTrouble { .. }
            );
            let is_held_up = match is_elsewhere {
                true => &mut summary.is_held_up_elsewhere,
                false => &mut summary.is_held_up,
            };
            *is_held_up |= !source.is_everywhere;
        }
        match state {
            SourceState::Ready | SourceState::WaitingForOtherCluster | SourceState::Dormant { .. } => {}
            SourceState::Waiting => summary.waits_here = true,
            SourceState::OtherClusterTrouble { reason, .. } => {
                summary.troubles_elsewhere.push(reason.clone())
            }
            SourceState::Trouble {
                reason,
                absent,
                was_ready,
            } => {
                summary.troubles.push(reason.clone());
                if *absent && !was_ready {
                    summary.absent.get_or_insert_with(|| source.name.clone());
                }
            }
        }
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    // D16
    #[test]
    fn a_source_of_another_cluster_holds_up_the_controller_no_longer_than_the_limit() {
        let source = || SourceInfo {
            name: "secrets".to_owned(),
            is_everywhere: false,
        };
        let trouble = SourceState::OtherClusterTrouble {
            reason: "unreachable".to_owned(),
            was_ready: false,
        };
        for state in [SourceState::WaitingForOtherCluster, trouble] {
            let summary = summarize(&[source()], &[state]);
            assert!(summary.is_held_up(false) && !summary.is_held_up(true));
        }
        let summary = summarize(&[source()], &[SourceState::Waiting]);
        assert!(summary.is_held_up(true), "the default cluster is waited for");
    }
}
