// SPDX-License-Identifier: Apache-2.0
//! Who may act: the seam between what runs and the election that permits it.
//!
//! Whoever decides about leadership holds a [`LeadershipKeeper`]; what runs holds a [`Leadership`] and asks it for a
//! [`Term`]. Holding a term means to act.
//!
//! # Guarantees
//! 1. A term is given only while the keeper grants leadership.
//! 2. A term learns when it ended, from the one who ends it and whatever else is busy. Those who hold it stop acting and
//!    drop it.
//! 3. [`LeadershipKeeper::vacated`] ends when no term is held any more. Before that nothing is released that others
//!    wait for.

use std::sync::Arc;

use steersman_cluster::Fence;
use steersman_core::MonotonicTime;
use tokio::sync::watch;

use crate::{Stop, StopHandle};

/// Grants and revokes leadership.
///
/// ```
/// # futures::executor::block_on(async {
/// use steersman_cluster::Fence;
/// use steersman_runtime::testing::LeadershipKeeper;
///
/// let (keeper, leadership) = LeadershipKeeper::new();
/// keeper.grant(Fence::open());
/// let term = leadership.term().await;
/// keeper.revoke();
/// term.ended().await;
/// assert!(!keeper.is_vacated());
/// drop(term);
/// keeper.vacated().await;
/// # });
/// ```
#[derive(Debug)]
pub struct LeadershipKeeper {
    granted: watch::Sender<Granted>,
    held: Arc<watch::Sender<usize>>,
}

/// Where terms come from. Clones are equal.
#[derive(Clone, Debug)]
pub struct Leadership {
    granted: watch::Receiver<Granted>,
    held: Arc<watch::Sender<usize>>,
    /// Kept where nobody else is there to keep it.
    _keeper: Option<Arc<LeadershipKeeper>>,
}

/// The present term, if there is one, and how many have ended before it.
#[derive(Debug, Default)]
struct Granted {
    present: Option<Grant>,
    ended: u64,
}

/// What a term is made of.
#[derive(Clone, Debug)]
struct Grant {
    fence: Fence,
    end: Arc<StopHandle>,
    stop: Stop,
}

/// A time of leading. Drop it when the work that it permits has ended.
#[derive(Clone, Debug)]
pub struct Term {
    fence: Fence,
    stop: Stop,
    _seat: Arc<Seat>,
    /// Kept where nobody else is there to keep it.
    _keeper: Option<Arc<LeadershipKeeper>>,
}

/// Counts one who acts.
#[derive(Debug)]
struct Seat(Arc<watch::Sender<usize>>);

impl LeadershipKeeper {
    /// Nobody leads yet.
    #[must_use]
    pub fn new() -> (Self, Leadership) {
        let held = Arc::new(watch::Sender::new(0));
        let (sender, granted) = watch::channel(Granted::default());
        let keeper = Self {
            granted: sender,
            held: Arc::clone(&held),
        };
        let leadership = Leadership {
            granted,
            held,
            _keeper: None,
        };
        (keeper, leadership)
    }

    /// Begins a term. What is written in it passes `fence`.
    pub fn grant(&self, fence: Fence) {
        let (end, stop) = StopHandle::new();
        let end = Arc::new(end);
        self.replace(Some(Grant { fence, end, stop }));
    }

    /// Ends the term.
    pub fn revoke(&self) {
        self.replace(None);
    }

    fn replace(&self, next: Option<Grant>) {
        // Under the lock, so that nobody who is told of the end finds the term that has ended.
        self.granted.send_modify(|granted| {
            if let Some(former) = std::mem::replace(&mut granted.present, next) {
                granted.ended += 1;
                former.end.stop_by(MonotonicTime::ORIGIN);
            }
        });
    }

    /// Waits until nobody holds a term any more.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn vacated(&self) {
        // The sender lives as long as `self`.
        let _ = self.held.subscribe().wait_for(|held| *held == 0).await;
    }

    /// The number of terms that are held now. Clones of one term count once.
    #[must_use]
    pub fn held_terms(&self) -> usize {
        *self.held.borrow()
    }

    /// Whether nobody holds a term.
    #[must_use]
    pub fn is_vacated(&self) -> bool {
        *self.held.borrow() == 0
    }
}

/// When nobody is left who could grant it, the term has ended as well.
impl Drop for LeadershipKeeper {
    fn drop(&mut self) {
        self.revoke();
    }
}

impl Leadership {
    /// Leadership that nobody contends for.
    #[must_use]
    pub fn always() -> Self {
        let (keeper, mut leadership) = LeadershipKeeper::new();
        keeper.grant(Fence::open());
        leadership._keeper = Some(Arc::new(keeper));
        leadership
    }

    /// Waits until leadership is granted.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn term(&self) -> Term {
        let mut granted = self.granted.clone();
        loop {
            if let Some(term) = self.try_term() {
                return term;
            }
            if granted.changed().await.is_err() {
                // Nobody is left who could grant it.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The present term, if there is one.
    #[must_use]
    pub fn try_term(&self) -> Option<Term> {
        // The seat is taken first, so that it cannot be missed by one who revokes and then counts.
        let seat = Seat::take(&self.held);
        let Grant { fence, stop, .. } = self.granted.borrow().present.clone()?;
        Some(Term {
            fence,
            stop,
            _seat: Arc::new(seat),
            _keeper: self._keeper.clone(),
        })
    }

    /// Whether leadership is granted now, and its fence is open.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        let granted = self.granted.borrow();
        let present = granted.present.as_ref();
        present.is_some_and(|grant| grant.fence.check().is_ok())
    }

    /// The number of terms that have ended since the leadership was created. Compare two values to find out whether a term
    /// ended in between.
    #[must_use]
    pub fn ended_terms(&self) -> u64 {
        self.granted.borrow().ended
    }

    /// Waits until more than this number of [terms have ended](Self::ended_terms).
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn ended_more_than(&self, terms: u64) {
        let mut granted = self.granted.clone();
        if granted.wait_for(|granted| granted.ended > terms).await.is_err() {
            // The keeper is gone, so no further term begins or ends.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until leadership is not granted.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn vacant(&self) {
        // When nobody is left who could grant it, it is not granted.
        let _ = self
            .granted
            .clone()
            .wait_for(|granted| granted.present.is_none())
            .await;
    }
}

impl Term {
    /// What its writes have to pass.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Tells those who act in it of its end. They have no time then: nobody lets them write any more.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Waits until this term has ended.
    ///
    /// # Cancel safety
    /// It can be dropped at any time.
    pub async fn ended(&self) {
        self.stop.requested().await;
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stop.is_requested()
    }

    /// Whether nothing may be written in it any more: it has ended, or its fence is closed and it is about to.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.is_over() || self.fence.check().is_err()
    }
}

impl Seat {
    fn take(held: &Arc<watch::Sender<usize>>) -> Self {
        held.send_modify(|held| *held += 1);
        Self(Arc::clone(held))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.send_modify(|held| *held -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn guarantee_1_no_term_is_given_without_a_grant() {
        let (keeper, leadership) = LeadershipKeeper::new();
        assert!(leadership.term().now_or_never().is_none());
        keeper.grant(Fence::open());
        assert!(leadership.term().now_or_never().is_some());
        keeper.revoke();
        assert!(leadership.try_term().is_none());
        assert_eq!(leadership.ended_terms(), 1);
        assert!(leadership.ended_more_than(0).now_or_never().is_some());
        assert!(leadership.ended_more_than(1).now_or_never().is_none());
        keeper.revoke();
        assert_eq!(leadership.ended_terms(), 1, "there was no term to end");
        assert!(keeper.is_vacated(), "asking in vain leaves nothing behind");
    }

    #[test]
    fn guarantee_2_a_term_ends_also_if_the_next_has_begun() {
        let (keeper, leadership) = LeadershipKeeper::new();
        keeper.grant(Fence::open());
        let term = leadership.try_term().unwrap();
        assert!(term.ended().now_or_never().is_none());
        keeper.grant(Fence::open());
        assert!(term.ended().now_or_never().is_some() && term.is_over());
        let next = leadership.try_term().unwrap();
        assert!(!next.is_over());
        keeper.revoke();
        keeper.grant(Fence::open());
        assert!(term.is_over() && next.is_over(), "no term comes back");
    }

    #[test]
    fn guarantee_3_leadership_is_vacated_when_the_last_clone_of_a_term_drops() {
        let (keeper, leadership) = LeadershipKeeper::new();
        keeper.grant(Fence::open());
        let term = leadership.try_term().unwrap();
        let other = term.clone();
        keeper.revoke();
        drop(term);
        assert!(keeper.vacated().now_or_never().is_none());
        drop(other);
        assert!(keeper.vacated().now_or_never().is_some());
    }

    // R63
    #[test]
    fn leadership_without_a_contender_never_ends() {
        let term = Leadership::always().try_term().unwrap();
        assert!(!term.is_over() && term.ended().now_or_never().is_none());
    }

    #[test]
    fn a_term_whose_fence_is_closed_is_spent_before_it_ends() {
        let (fence_keeper, fence) = Fence::new(Arc::new(steersman_core::TestClock::new()));
        fence_keeper.open_until(None);
        let (keeper, leadership) = LeadershipKeeper::new();
        keeper.grant(fence);
        let term = leadership.try_term().unwrap();
        assert!(!term.is_spent());
        fence_keeper.close("the time is up");
        assert!(term.is_spent() && !term.is_over());
        drop(keeper);
        assert!(term.is_over() && leadership.try_term().is_none());
    }
}
