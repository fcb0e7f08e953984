// SPDX-License-Identifier: Apache-2.0
//! What is remembered of one key that writes its own object.

use std::{collections::VecDeque, time::Duration};

/// So many times a key may wake itself before it is slowed down.
const PATIENCE: u32 = 10;
const DELAY_MAX: Duration = Duration::from_secs(60);

/// So many writes are remembered until they come back.
const AWAITED: usize = 8;

/// Reconciles, each caused by the one before.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The revisions that were written and have not come back, in order.
    awaited: VecDeque<String>,
    /// A revision that came while the key was in flight, which may turn out to be its own.
    strange: Option<String>,
    /// Whether that revision was what put the key into the queue.
    strange_woke: bool,
    /// Another one came after it that cannot be told from somebody else's.
    disturbed: bool,
    /// An event waits for the end of the reconcile to be judged.
    held: bool,
    /// The key is in flight.
    busy: bool,
    /// The reconcile that is under way, or the last one, has written.
    wrote: bool,
    /// A write has come back and put the key into the queue.
    woken: bool,
    /// Somebody else has asked for the next reconcile as well.
    others: bool,
    /// The reconcile under way was caused by that, and has written nothing yet.
    caused: bool,
    length: u32,
}

/// Whose doing a revision is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The controller's.
    Own,
    /// Somebody else's.
    Foreign,
    /// It will turn out. The key can be enqueued in any case.
    Undecided,
    /// It will turn out, and the key is enqueued then.
    Held,
}

/// What is left after a reconcile.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The chain goes on. An event that was held turned out to be the controller's own.
    GoesOn { held: bool },
    /// It is over. An event that was held is somebody else's.
    Over { held: bool },
}

/// How long a key waits that woke itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slowed {
    pub(super) delay: Duration,
    /// It was not said yet.
    pub(super) is_first: bool,
}

impl Chain {
    pub(super) fn began(&mut self) {
        self.busy = true;
        self.wrote = false;
        // Whatever is left of a reconcile that was cancelled is seen by this one.
        (self.strange, self.disturbed, self.held) = (None, false, false);
        let others = std::mem::take(&mut self.others);
        self.caused = std::mem::take(&mut self.woken) && !others;
        if !self.caused {
            self.length = 0;
        }
    }

    pub(super) fn wrote(&mut self, revision: &str) {
        self.wrote = true;
        if std::mem::take(&mut self.caused) {
            self.length += 1;
        }
        if self.strange.as_deref() == Some(revision) {
            self.strange = None;
            self.awaited.clear();
            self.woken |= self.strange_woke;
            return;
        }
        if self.awaited.len() == AWAITED {
            self.awaited.pop_front();
        }
        self.awaited.push_back(revision.to_owned());
    }

    pub(super) fn came(&mut self, revision: &str) -> Verdict {
        if let Some(place) = self.awaited.iter().position(|awaited| awaited == revision) {
            self.awaited.drain(..=place);
            return Verdict::Own;
        }
        if !self.busy {
            return Verdict::Foreign;
        }
        // Writes follow each other: of two that nobody knows, one is somebody else's.
        self.disturbed |= self.strange.replace(revision.to_owned()).is_some();
        self.strange_woke = false;
        if self.is_hot() {
            self.held = true;
            Verdict::Held
        } else {
            Verdict::Undecided
        }
    }

    /// A write that came back was, or was not, what put the key into the queue.
    pub(super) fn woken(&mut self, woken: bool) {
        self.woken |= woken;
    }

    pub(super) fn added_by_others(&mut self) {
        self.others = true;
    }

    /// The same of the revision that is not decided.
    pub(super) fn maybe_woken(&mut self, woken: bool) {
        self.strange_woke = woken;
    }

    pub(super) fn ended(&mut self) -> Ended {
        self.busy = false;
        let held = std::mem::take(&mut self.held);
        if std::mem::take(&mut self.disturbed) || self.strange.take().is_some() {
            return Ended::Over { held };
        }
        self.woken |= held;
        if self.wrote || self.woken {
            Ended::GoesOn { held }
        } else {
            Ended::Over { held }
        }
    }

    pub(super) fn slowed(&self) -> Option<Slowed> {
        let over = self.length.checked_sub(PATIENCE)?;
        Some(Slowed {
            delay: Duration::from_secs(1 << over.min(6)).min(DELAY_MAX),
            is_first: over == 0,
        })
    }

    fn is_hot(&self) -> bool {
        // The write that this may be is not counted yet.
        self.length + u32::from(self.caused) >= PATIENCE
    }
}
