// SPDX-License-Identifier: Apache-2.0
//! A signal that the server of a cluster answers. Senders of requests share it with reflectors in back-off.
//!
//! # Guarantees
//! 1. A reflector in back-off retries as soon as the server has answered any request of the cluster with success, after some
//!    jitter. It does not retry within a few seconds of its last failure, nor before its back-off ends if the server was
//!    repeatedly too busy for it.
//! 2. While no request succeeds, one of the waiting reflectors retries every few seconds, and the others wait for the end of
//!    their back-off. So a recovery is noticed soon, and a failing server gets requests of one reflector only.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steersman_core::{Clock, MonotonicTime, Mutex, Random};
use tokio::sync::Notify;

/// After the first answer, all waiting reflectors retry within this time.
const JITTER: Duration = Duration::from_millis(500);

/// If the retrying reflector has not failed again after this time, it has recovered or waits for an answer. Then another one
/// retries.
const TURN: Duration = Duration::from_secs(6);

/// Signals that one server answers. Clones share the signal.
#[derive(Clone, Debug, Default)]
pub struct Liveness(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Number of waiting reflectors.
    waiting: AtomicUsize,
    answered: Notify,
    /// The reflector that retries while the others wait, and the time of its last retry.
    prober: Mutex<Option<(Weak<()>, MonotonicTime)>>,
}

/// Delay before a retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    /// Earliest retry, if the server answers another request.
    pub(crate) early: Duration,
    /// Latest retry.
    pub(crate) full: Duration,
}

/// The identity of a reflector.
#[derive(Debug, Default)]
pub(crate) struct ReflectorId(Arc<()>);

/// Counts a waiting reflector.
struct Waiting<'l>(&'l AtomicUsize);

impl Liveness {
    /// Creates a signal without an answer so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Signals that the server has answered a request with success. Cheap while no reflector waits.
    pub fn answered(&self) {
        if self.0.waiting.load(Ordering::Acquire) > 0 {
            *self.0.prober.lock() = None;
            self.0.answered.notify_waiters();
        }
    }

    /// Waits for the delay. After its early part, ends sooner if the server answers others, or if this reflector is the one that retries
    /// while the others wait. Returns true if the server answered another request meanwhile.
    pub(crate) fn wait<'w>(
        &'w self,
        token: &'w ReflectorId,
        Delay { early, full }: Delay,
        clock: &'w Arc<dyn Clock>,
        random: &'w Random,
    ) -> impl Future<Output = bool> + 'w {
        // Starts now, not at the first poll.
        let waiting = Waiting::new(&self.0.waiting);
        let (answered, start) = (self.0.answered.notified(), clock.now());
        async move {
            let _waiting = waiting;
            let mut answered = std::pin::pin!(answered);
            let (first, last): (MonotonicTime, MonotonicTime) = (start + early.min(full), start + full);
            let (mut next, mut is_alive) = (first, false);
            loop {
                tokio::select! {
                    biased;
                    () = &mut answered, if !is_alive => {
                        is_alive = true;
                        let soon = clock.now() + JITTER.mul_f64(random.fraction());
                        next = soon.max(first).min(last);
                    }
                    () = clock.sleep_until(next) => {
                        if next >= last || is_alive || self.become_prober(token, next) {
                            return is_alive;
                        }
                        next = (next + early).min(last);
                    }
                }
            }
        }
    }

    /// Returns true if this reflector is the one that retries while the others wait.
    fn become_prober(&self, token: &ReflectorId, now: MonotonicTime) -> bool {
        let mut prober = self.0.prober.lock();
        let is_taken = prober.as_ref().is_some_and(|(other, asked)| {
            let other = other.upgrade().filter(|other| !Arc::ptr_eq(other, &token.0));
            other.is_some() && now.saturating_since(*asked) < TURN
        });
        if !is_taken {
            *prober = Some((Arc::downgrade(&token.0), now));
        }
        !is_taken
    }
}

impl<'l> Waiting<'l> {
    fn new(count: &'l AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Waker},
    };

    use steersman_core::TestClock;

    use super::*;

    const EARLY: Duration = Duration::from_secs(3);
    const FULL: Duration = Duration::from_secs(40);

    struct Scene {
        liveness: Liveness,
        clock: TestClock,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                liveness: Liveness::new(),
                clock: TestClock::new(),
            }
        }

        fn wait<'s>(&'s self, token: &'s ReflectorId) -> Pin<Box<dyn Future<Output = ()> + 's>> {
            Box::pin(async move {
                let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
                let random = Random::from_seed(1);
                let delay = Delay {
                    early: EARLY,
                    full: FULL,
                };
                self.liveness.wait(token, delay, &clock, &random).await;
            })
        }
    }

    fn is_over(wait: &mut Pin<Box<dyn Future<Output = ()> + '_>>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        wait.as_mut().poll(&mut cx).is_ready()
    }

    // D30
    #[test]
    fn guarantee_1_a_response_ends_all_waits_with_jitter() {
        let (scene, tokens) = (Scene::new(), [ReflectorId::default(), ReflectorId::default()]);
        let mut waits = tokens.each_ref().map(|token| scene.wait(token));
        assert!(!waits.iter_mut().any(is_over));
        scene.clock.advance(EARLY - Duration::from_millis(1));
        scene.liveness.answered();
        assert!(!waits.iter_mut().any(is_over), "too early");
        scene.clock.advance(JITTER);
        assert!(waits.iter_mut().all(is_over));
    }

    // D30
    #[test]
    fn guarantee_2_one_reflector_retries_while_the_others_wait() {
        let (scene, tokens) = (Scene::new(), [ReflectorId::default(), ReflectorId::default()]);
        let mut waits = tokens.each_ref().map(|token| scene.wait(token));
        assert!(!waits.iter_mut().any(is_over));
        scene.clock.advance(EARLY);
        assert_eq!(waits.each_mut().map(is_over), [true, false]);
        // It fails again, and is again the one that retries.
        let mut again = scene.wait(&tokens[0]);
        assert!(!is_over(&mut again));
        scene.clock.advance(EARLY);
        assert_eq!((is_over(&mut again), is_over(&mut waits[1])), (true, false));
        drop((again, waits));
        // Another one replaces it when it is dropped.
        let [first, second] = tokens;
        drop(first);
        let mut wait = scene.wait(&second);
        assert!(!is_over(&mut wait));
        scene.clock.advance(EARLY);
        assert!(is_over(&mut wait));
    }

    // D30
    #[test]
    fn guarantee_2_the_other_reflectors_complete_their_back_off() {
        let (scene, tokens) = (Scene::new(), [ReflectorId::default(), ReflectorId::default()]);
        let mut wait = scene.wait(&tokens[1]);
        for _ in 0..13 {
            assert!(scene.liveness.become_prober(&tokens[0], scene.clock.now()));
            assert!(!is_over(&mut wait));
            scene.clock.advance(EARLY);
        }
        assert!(!is_over(&mut wait));
        scene.clock.advance(EARLY);
        assert!(is_over(&mut wait));
    }

    // D30
    #[test]
    fn guarantee_2_another_reflector_retries_after_the_first_recovers() {
        let (scene, tokens) = (Scene::new(), [ReflectorId::default(), ReflectorId::default()]);
        assert!(scene.liveness.become_prober(&tokens[0], scene.clock.now()));
        scene.clock.advance(TURN);
        let mut wait = scene.wait(&tokens[1]);
        assert!(!is_over(&mut wait));
        scene.clock.advance(EARLY);
        assert!(is_over(&mut wait));
    }
}
