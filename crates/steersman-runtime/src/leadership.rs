// SPDX-License-Identifier: Apache-2.0
//! Leadership: the interface between runnables and the election.
//!
//! The election holds a [`LeadershipKeeper`]. A runnable holds a [`Leadership`] and waits for a [`Term`]; it acts only
//! while it holds a term.
//!
//! # Guarantees
//! 1. A term is given only while the keeper grants leadership.
//! 2. The keeper notifies each holder of a term of its end, whatever else is busy. Holders stop acting and drop the term.
//! 3. [`LeadershipKeeper::vacated`] completes when no term is held any more. Nothing that others wait for is released
//!    before that.

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

/// Read side of leader election. [`term`](Self::term) waits until this replica is leader and returns a [`Term`], a guard for
/// the leadership period. Clones share the leadership.
#[derive(Clone, Debug)]
pub struct Leadership {
    granted: watch::Receiver<Granted>,
    held: Arc<watch::Sender<usize>>,
    /// Held if there is no other owner of the keeper.
    _keeper: Option<Arc<LeadershipKeeper>>,
}

/// The current term, if there is one, and the number of terms that have ended before it.
#[derive(Debug, Default)]
struct Granted {
    present: Option<Grant>,
    ended: u64,
}

/// The state that every holder of the current term shares: the fence of its writes and its stop signal.
#[derive(Clone, Debug)]
struct Grant {
    fence: Fence,
    end: Arc<StopHandle>,
    stop: Stop,
}

/// A term of leadership. Drop it when the work in it has ended.
#[derive(Clone, Debug)]
pub struct Term {
    fence: Fence,
    stop: Stop,
    _holder: Arc<HolderGuard>,
    /// Held if there is no other owner of the keeper.
    _keeper: Option<Arc<LeadershipKeeper>>,
}

/// Counts one holder of a term.
#[derive(Debug)]
struct HolderGuard(Arc<watch::Sender<usize>>);

impl LeadershipKeeper {
    /// Creates a keeper that has not granted leadership yet.
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

    /// Begins a term. Writes in it pass `fence`.
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
        // Under the lock, so that a holder that is notified of the end does not get the old term again.
        self.granted.send_modify(|granted| {
            if let Some(former) = std::mem::replace(&mut granted.present, next) {
                granted.ended += 1;
                former.end.stop_by(MonotonicTime::ORIGIN);
            }
        });
    }

    /// Waits until no term is held any more.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn vacated(&self) {
        // The sender lives as long as `self`.
        let _ = self.held.subscribe().wait_for(|held| *held == 0).await;
    }

    /// Number of terms that are held now. Clones of one term count once.
    #[must_use]
    pub fn held_terms(&self) -> usize {
        *self.held.borrow()
    }

    /// Returns true if all leader work has ended, that is, every [`Term`] was dropped.
    #[must_use]
    pub fn is_vacated(&self) -> bool {
        *self.held.borrow() == 0
    }
}

/// Ends the term: without a keeper, leadership cannot be granted.
impl Drop for LeadershipKeeper {
    fn drop(&mut self) {
        self.revoke();
    }
}

impl Leadership {
    /// Returns a leadership that is always granted.
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
    /// The future can be dropped at any time.
    pub async fn term(&self) -> Term {
        let mut granted = self.granted.clone();
        loop {
            if let Some(term) = self.try_term() {
                return term;
            }
            if granted.changed().await.is_err() {
                // The keeper was dropped: no term can begin.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the current term, if there is one.
    #[must_use]
    pub fn try_term(&self) -> Option<Term> {
        // The holder is counted first, so that a keeper that revokes and then counts cannot miss it.
        let holder = HolderGuard::take(&self.held);
        let Grant { fence, stop, .. } = self.granted.borrow().present.clone()?;
        Some(Term {
            fence,
            stop,
            _holder: Arc::new(holder),
            _keeper: self._keeper.clone(),
        })
    }

    /// Returns true if leadership is granted now, and its fence is open.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        let granted = self.granted.borrow();
        let present = granted.present.as_ref();
        present.is_some_and(|grant| grant.fence.check().is_ok())
    }

    /// Number of terms that have ended since the leadership was created. Compare two values to detect a term that ended in
    /// between.
    #[must_use]
    pub fn ended_terms(&self) -> u64 {
        self.granted.borrow().ended
    }

    /// Waits until more than this number of [terms have ended](Self::ended_terms).
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn ended_more_than(&self, terms: u64) {
        let mut granted = self.granted.clone();
        if granted.wait_for(|granted| granted.ended > terms).await.is_err() {
            // The keeper was dropped, so no further term begins or ends.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until leadership is not granted.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn vacant(&self) {
        // Without a keeper, leadership is not granted.
        let _ = self
            .granted
            .clone()
            .wait_for(|granted| granted.present.is_none())
            .await;
    }
}

impl Term {
    /// Fence of the writes in this term.
    #[must_use]
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Stop request at the end of the term. Work in the term has no time then: its writes are fenced.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Waits until this term has ended.
    ///
    /// # Cancel safety
    /// The future can be dropped at any time.
    pub async fn ended(&self) {
        self.stop.requested().await;
    }

    /// Returns true if the term has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stop.is_requested()
    }

    /// Returns true if writes are allowed. False once the term has ended, or its fence is closed and it is about to end.
    #[must_use]
    pub fn can_write(&self) -> bool {
        !self.is_over() && self.fence.check().is_ok()
    }
}

impl HolderGuard {
    fn take(held: &Arc<watch::Sender<usize>>) -> Self {
        held.send_modify(|held| *held += 1);
        Self(Arc::clone(held))
    }
}

impl Drop for HolderGuard {
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
        assert!(term.can_write());
        fence_keeper.close("the time is up");
        assert!(!term.can_write() && !term.is_over());
        drop(keeper);
        assert!(term.is_over() && leadership.try_term().is_none());
    }
}
