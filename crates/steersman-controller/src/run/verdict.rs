// SPDX-License-Identifier: Apache-2.0
//! What follows for a controller from how its sources stand.

use crate::{
    RequestKey, RunError, Standing,
    controller::Plan,
    source::{AnySource, SourceState},
};

/// How all sources together stand.
#[derive(Default)]
pub(super) struct Verdict {
    /// The names of those that have not enqueued what is there.
    waiting: Vec<String>,
    /// Whether one of them has to, before anything is worked on.
    is_held_up: bool,
    troubles: Vec<String>,
    absent: Option<String>,
}

/// What is known of a source before it runs.
pub(super) struct Known {
    name: String,
    /// Its clusters are waited for one by one, by their own keys.
    is_everywhere: bool,
}

impl Verdict {
    /// Whether something has to be waited for before anything is worked on.
    pub(super) fn is_held_up(&self) -> bool {
        self.is_held_up
    }

    /// Whether the controller gives up.
    pub(super) fn refuse<R: RequestKey>(&self, plan: &Plan<R>, is_late: bool) -> Result<(), RunError> {
        let controller = || plan.name.to_string();
        let is_strict = plan.options.is_strict();
        match &self.absent {
            Some(kind) if is_late || is_strict => Err(RunError::Absent {
                controller: controller(),
                kind: kind.clone(),
            }),
            _ if is_strict && !self.troubles.is_empty() => Err(RunError::Source {
                controller: controller(),
                reason: self.troubles.join("; "),
            }),
            _ if is_strict && is_late && !self.waiting.is_empty() => Err(RunError::Source {
                controller: controller(),
                reason: format!("{} not in sync in time", self.waiting.join(", ")),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn standing(&self, is_late: bool) -> Standing {
        if !self.troubles.is_empty() {
            return Standing::Degraded {
                reason: self.troubles.join("; "),
            };
        }
        match (self.waiting.is_empty(), is_late) {
            (true, _) => Standing::Ready,
            (false, false) => Standing::Waiting {
                on: self.waiting.clone(),
            },
            (false, true) => Standing::Degraded {
                reason: format!("{} not in sync in time", self.waiting.join(", ")),
            },
        }
    }
}

impl Known {
    pub(super) fn of<R: RequestKey>(source: &AnySource<R>) -> Self {
        Self {
            name: source.name(),
            is_everywhere: source.is_everywhere(),
        }
    }
}

pub(super) fn judge(sources: &[Known], states: &[SourceState]) -> Verdict {
    let mut verdict = Verdict::default();
    for (source, state) in sources.iter().zip(states) {
        if !state.has_been_ready() {
            verdict.waiting.push(source.name.clone());
            verdict.is_held_up |= !source.is_everywhere;
        }
        match state {
            SourceState::Ready | SourceState::Waiting | SourceState::Dormant { .. } => {}
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
