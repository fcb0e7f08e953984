// SPDX-License-Identifier: Apache-2.0
//! Debounce: delays changes until they have lasted.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use steersman_core::{Clock, MonotonicTime, Presence, PresenceStatus};

use super::PresenceStream;

/// Passes changes that have lasted. A new reason with the same state is not a change.
pub(super) fn debounce(
    presence_statuses: PresenceStream,
    clock: Arc<dyn Clock>,
    lasting: Duration,
) -> PresenceStream {
    struct State {
        presence_statuses: PresenceStream,
        reported: Option<PresenceStatus>,
        /// True after the first answer.
        is_answered: bool,
        /// The new state, and the time at which it will have lasted.
        pending: Option<(PresenceStatus, MonotonicTime)>,
    }
    let state = State {
        presence_statuses,
        reported: None,
        is_answered: false,
        pending: None,
    };
    let settled = stream::unfold((state, clock), move |(mut state, clock)| async move {
        loop {
            let next = match &state.pending {
                None => state.presence_statuses.next().await,
                Some((_, due)) => tokio::select! {
                    biased;
                    () = clock.sleep_until(*due) => {
                        state.reported = state.pending.take().map(|(presence_status, _)| presence_status);
                        return state.reported.clone().map(|reported| (reported, (state, clock)));
                    }
                    next = state.presence_statuses.next() => next,
                },
            };
            match (next, &state.reported) {
                (None, _) if state.pending.is_none() => return None,
                (None, _) => {
                    // Nothing can change the pending state any more.
                    state.presence_statuses = stream::pending().boxed();
                }
                (Some(presence_status), Some(reported))
                    if state.is_answered && !is_same(reported, &presence_status) =>
                {
                    let lasts = state
                        .pending
                        .take()
                        .filter(|(before, _)| is_same(before, &presence_status));
                    let due = lasts.map_or_else(|| clock.now() + lasting, |(_, due)| due);
                    state.pending = Some((presence_status, due));
                }
                (Some(presence_status), reported) => {
                    let is_news = reported.as_ref() != Some(&presence_status);
                    state.pending = None;
                    if is_news {
                        state.is_answered |= presence_status.presence != Presence::Unknown;
                        state.reported = Some(presence_status.clone());
                        return Some((presence_status, (state, clock)));
                    }
                }
            }
        }
    });
    settled.boxed()
}

/// Returns true if two states are the same, for any reason.
fn is_same(one: &PresenceStatus, other: &PresenceStatus) -> bool {
    (one.presence, &one.incarnation) == (other.presence, &other.incarnation)
}

#[cfg(test)]
mod tests {
    use steersman_core::Presence::{Absent, Present, Unknown};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        BoxError, RunCondition,
        run_condition::tests::{clock, newest, reported},
    };

    #[test]
    fn a_change_that_does_not_last_is_not_reported() {
        let (time, clock) = clock();
        let (sender, condition) = reported("a");
        sender.send_replace(Present);
        let mut settled = condition.debounce(Duration::from_secs(5)).watch(&clock);
        assert_eq!(newest(&mut settled), Some(Present), "the first counts at once");
        sender.send_replace(Absent);
        assert_eq!(newest(&mut settled), None);
        time.advance(Duration::from_secs(4));
        sender.send_replace(Present);
        assert_eq!(newest(&mut settled), None);
        time.advance(Duration::from_secs(10));
        assert_eq!(newest(&mut settled), None);
        sender.send_replace(Absent);
        assert_eq!(newest(&mut settled), None);
        time.advance(Duration::from_secs(5));
        assert_eq!(newest(&mut settled), Some(Absent));
    }

    #[test]
    fn an_unknown_presence_is_not_the_first_answer() {
        let (time, clock) = clock();
        let (sender, condition) = reported("a");
        let mut settled = condition.debounce(Duration::from_secs(5)).watch(&clock);
        assert_eq!(newest(&mut settled), Some(Unknown));
        sender.send_replace(Present);
        assert_eq!(
            newest(&mut settled),
            Some(Present),
            "the first answer counts at once"
        );
        // Later it is an ordinary change, and so is the state after it.
        for change in [Unknown, Absent] {
            sender.send_replace(change);
            assert_eq!(newest(&mut settled), None);
            time.advance(Duration::from_secs(5));
            assert_eq!(newest(&mut settled), Some(change));
        }
    }

    #[test]
    fn a_lasting_change_is_reported_once_however_often_it_is_repeated() {
        let (time, clock) = clock();
        let flag = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let polled = Arc::clone(&flag);
        let condition = RunCondition::poll("flag", Duration::from_secs(1), move || {
            let holds = polled.load(std::sync::atomic::Ordering::Relaxed);
            async move { Ok::<_, BoxError>(holds) }
        });
        let mut settled = condition.debounce(Duration::from_secs(2)).watch(&clock);
        assert_eq!(newest(&mut settled), Some(Present));
        flag.store(false, std::sync::atomic::Ordering::Relaxed);
        let mut reported = Vec::new();
        for _ in 0..5 {
            time.advance(Duration::from_secs(1));
            reported.extend(newest(&mut settled));
        }
        assert_eq!(
            reported,
            [Absent],
            "it changed at the first second, and lasted at the third"
        );
    }

    #[test]
    fn a_lasting_change_is_reported_although_its_reason_changes() {
        let (time, clock) = clock();
        let (sender, receiver) = watch::channel((Present, 0));
        let condition = RunCondition::from_stream("counted", move || {
            let mut receiver = receiver.clone();
            receiver.mark_changed();
            stream::unfold(receiver, |mut receiver| async move {
                receiver.changed().await.ok()?;
                let (presence, version) = *receiver.borrow_and_update();
                Some((
                    PresenceStatus::new(presence, format!("it is at {version}")),
                    receiver,
                ))
            })
        });
        let mut settled = condition.debounce(Duration::from_secs(2)).watch(&clock);
        assert_eq!(newest(&mut settled), Some(Present));
        let mut reported = Vec::new();
        for version in 1..=4 {
            sender.send_replace((Absent, version));
            reported.extend(newest(&mut settled));
            time.advance(Duration::from_secs(1));
        }
        reported.extend(newest(&mut settled));
        // The second time it is Absent as before, for another reason.
        assert_eq!(reported, [Absent, Absent]);
    }
}
