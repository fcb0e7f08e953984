// SPDX-License-Identifier: Apache-2.0
//! Runs that outlast a term of leadership.

use std::{pin::pin, time::Duration};

use crate::{BoxError, Leadership, RunContext, reconciler::is_fenced};
use steersman_core::{Clock, MonotonicTime, error_chain};

/// A failure of a run within this time after the end of a term counts as caused by it, whatever the error is. Equals the
/// time after which leader work that still runs is reported.
const AFTERMATH: Duration = Duration::from_secs(30);

/// Runs a warm-up runnable, and starts it again each time it fails because this replica stopped leading. In that case the
/// fence worked as intended, and the replica has to stay warm. Any other failure is the result.
///
/// Each start explains at most one failure for each lost term, so a runnable that fails for another reason ends the run.
///
/// # Cancel safety
/// As that of the run.
pub(crate) async fn across_terms<Fut>(
    name: &str,
    cx: &RunContext,
    mut run: impl FnMut() -> Fut,
) -> Result<(), BoxError>
where
    Fut: Future<Output = Result<(), BoxError>>,
{
    let (leadership, stop) = (cx.leadership(), cx.stop());
    loop {
        let clock = &**cx.clock();
        let (result, lost) = noting_losses(leadership, clock, run()).await;
        let error = match result {
            Err(error) if !stop.is_requested() && is_explained(leadership, clock, lost, &error) => error,
            result => return result,
        };
        tracing::warn!(name, error = %error_chain(&*error), "failed after it stopped leading; starting again");
        tokio::select! {
            biased;
            _ = stop.requested() => return Ok(()),
            () = spent_term_ended(leadership) => {}
        }
    }
}

/// Runs a future; returns its result, and the time at which the last term ended meanwhile, if one did.
async fn noting_losses<T>(
    leadership: &Leadership,
    clock: &dyn Clock,
    run: impl Future<Output = T>,
) -> (T, Option<MonotonicTime>) {
    let (mut run, mut lost) = (pin!(run), None);
    let mut ended = leadership.ended_terms();
    loop {
        let result = tokio::select! {
            biased;
            () = leadership.ended_more_than(ended) => None,
            result = &mut run => Some(result),
        };
        let now_ended = leadership.ended_terms();
        if now_ended > ended {
            (ended, lost) = (now_ended, Some(clock.now()));
        }
        if let Some(result) = result {
            return (result, lost);
        }
    }
}

/// Returns true if a run failed because of a term that it lost. The last term that ended during the run ended at `lost`.
///
/// Users wrap errors in any way. So two kinds of errors count: errors that a fence caused, and, while this replica does not
/// lead, every error soon after the end of a term.
fn is_explained(
    leadership: &Leadership,
    clock: &dyn Clock,
    lost: Option<MonotonicTime>,
    error: &BoxError,
) -> bool {
    if leadership.try_term().is_some_and(|term| !term.can_write()) {
        return true;
    }
    let Some(lost) = lost else {
        return false;
    };
    let is_recent = || clock.now().saturating_since(lost) < AFTERMATH;
    is_fenced(error) || (!leadership.is_leading() && is_recent())
}

/// Waits for the end of a term whose fence is already closed. A run that began in it would fail again at once.
async fn spent_term_ended(leadership: &Leadership) {
    if let Some(term) = leadership.try_term()
        && !term.can_write()
    {
        term.ended().await;
    }
}
