// SPDX-License-Identifier: Apache-2.0
//! Tests of the guarantees of the supervisor.

use std::time::Duration;

use crate::{LeadershipKeeper, RunFn, RunnableStatus, run_fn};
use steersman_cluster::Fence;
use steersman_core::{Random, Spawner, TestClock};
use tokio::sync::oneshot;

use super::*;

struct Stage {
    clock: TestClock,
    runtime: Arc<RuntimeContext>,
    supervisor: Supervisor,
    stop: Stop,
    _handle: StopHandle,
}

impl Stage {
    fn new() -> Self {
        let (clock, random) = (TestClock::new(), Arc::new(Random::from_seed(7)));
        let shared = Arc::new(clock.clone());
        let runtime = Arc::new(RuntimeContext::new(shared, random, Spawner::current()));
        let (handle, stop) = StopHandle::new();
        Self {
            clock,
            supervisor: Supervisor::new(&runtime, &CancelledTasks::default()),
            runtime,
            stop,
            _handle: handle,
        }
    }

    fn now(&self) -> MonotonicTime {
        self.runtime.clock().now()
    }

    fn start(&mut self, runnable: &BoxRunnable, turn: (&Leadership, Option<Term>)) {
        let (leadership, term) = turn;
        let now = self.now();
        self.supervisor.start(runnable, leadership, term, &self.stop, now);
    }

    /// Waits until a runnable fails, and returns its error.
    async fn failure(&mut self) -> String {
        let Change::Failed(failure) = self.supervisor.changed().await else {
            panic!("nothing was dismissed");
        };
        failure.error.to_string()
    }
}

fn runnable<F, Fut>(function: F) -> BoxRunnable
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send,
    RunFn<F>: Runnable,
{
    BoxRunnable::new(run_fn("one", function).with_policy(RunPolicy::Warm))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarantee_1_a_cancelled_runnable_ends_before_the_next_of_its_name_starts() {
    let mut stage = Stage::new();
    let (runs, mut begun) = watch::channel(0);
    let (go_on, blocked) = std::sync::mpsc::channel::<()>();
    let (runs, blocked) = (Arc::new(runs), Mutex::new(Some(blocked)));
    let deaf = runnable(move |cx| {
        runs.send_modify(|runs| *runs += 1);
        let blocked = blocked.lock().take();
        async move {
            cx.ready();
            // The first one cannot be cancelled for a while.
            if let Some(blocked) = blocked {
                let _ = blocked.recv();
            }
            cx.stop().requested().await;
            Ok(())
        }
    });
    let leadership = Leadership::always();
    stage.start(&deaf, (&leadership, None));
    begun.wait_for(|runs| *runs == 1).await.unwrap();
    let now = stage.now();
    assert!(stage.supervisor.stop(now, |_| true).await.is_empty());
    stage.start(&deaf, (&leadership, None));
    // Other runnables start meanwhile.
    stage.supervisor.begun().await;
    assert_eq!(*begun.borrow(), 1);
    go_on.send(()).unwrap();
    begun.wait_for(|runs| *runs == 2).await.unwrap();
    let is_ready = |all: &BTreeMap<String, RunnableStatus>| all.get("one") == Some(&RunnableStatus::Ready);
    stage.runtime.statuses().when(is_ready).await;
    stage
        .supervisor
        .stop(MonotonicTime::from_nanos(u64::MAX), |_| true)
        .await;
}

// R68, R177
#[tokio::test]
async fn guarantee_2_a_leader_that_fails_because_its_term_is_over_is_no_failure() {
    let mut stage = Stage::new();
    let (fence_keeper, fence) = Fence::new(Arc::clone(stage.runtime.clock()));
    fence_keeper.open_until(None);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(fence.clone());
    let (fail, failing) = watch::channel(false);
    let careless = move |_| {
        let mut failing = failing.clone();
        async move {
            failing.wait_for(|failing| *failing).await?;
            Err("held back".into())
        }
    };
    let careless = BoxRunnable::new(run_fn("one", careless).with_policy(RunPolicy::LeaderElected));
    stage.start(&careless, (&leadership, leadership.try_term()));
    stage.supervisor.begun().await;
    fence_keeper.close("the time is up");
    fail.send_replace(true);
    keeper.vacated().await;
    assert!(
        stage.supervisor.unreported_failures().is_empty(),
        "the term ends soon"
    );

    // With a term, it is an ordinary failure.
    keeper.grant(Fence::open());
    let now = stage.now();
    stage.supervisor.stop(now, |_| true).await;
    stage.start(&careless, (&leadership, leadership.try_term()));
    assert_eq!(stage.failure().await, "held back");
}

/// A warm-up runnable that acts when it leads, and fails on request with the error of its fence. Counts its runs.
fn careless_warm_up(failing: watch::Receiver<u32>) -> (BoxRunnable, watch::Receiver<u32>) {
    let (runs, counted) = watch::channel(0);
    let runs = Arc::new(runs);
    let careless = runnable(move |cx: RunContext| {
        runs.send_modify(|runs| *runs += 1);
        let (mut failing, number) = (failing.clone(), *runs.borrow());
        async move {
            cx.ready();
            let term = cx.leadership().term().await;
            failing.wait_for(|notified| *notified >= number).await?;
            term.fence().check()?;
            Err("a reason of its own".into())
        }
    });
    (careless, counted)
}

// R68, R177, D14
#[tokio::test]
async fn guarantee_2_a_warm_up_runnable_that_fails_because_it_is_fenced_starts_again() {
    let mut stage = Stage::new();
    let (fence_keeper, fence) = Fence::new(Arc::clone(stage.runtime.clock()));
    fence_keeper.open_until(None);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(fence);
    let (fail, failing) = watch::channel(0);
    let (careless, mut runs) = careless_warm_up(failing);
    // As the manager starts it: without a term, which the runnable takes itself.
    stage.start(&careless, (&leadership, None));
    stage.supervisor.begun().await;
    fence_keeper.close("the time is up");
    fail.send_replace(1);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*runs.borrow(), 1, "it would take the same term again");
    keeper.revoke();
    runs.wait_for(|runs| *runs == 2).await.unwrap();
    assert!(stage.supervisor.unreported_failures().is_empty());

    // The next failure has nothing to do with leadership.
    keeper.grant(Fence::open());
    fail.send_replace(2);
    assert_eq!(stage.failure().await, "a reason of its own");
    assert_eq!(*runs.borrow(), 2);
}

// D14
#[tokio::test]
async fn guarantee_2_a_warm_up_runnable_of_a_standby_that_fails_is_a_failure() {
    let mut stage = Stage::new();
    let (keeper, leadership) = LeadershipKeeper::new();
    stage.start(
        &runnable(async |_| Err("a reason of its own".into())),
        (&leadership, None),
    );
    assert_eq!(stage.failure().await, "a reason of its own");
    drop(keeper);
}

// D14
#[tokio::test]
async fn guarantee_2_a_warm_up_runnable_that_fails_long_after_it_led_is_a_failure() {
    let mut stage = Stage::new();
    let (keeper, leadership) = LeadershipKeeper::new();
    let (runs, mut has_begun) = watch::channel(0);
    let (led, mut has_led) = watch::channel(0);
    let (lost, mut has_lost) = watch::channel(0);
    let (fail, failing) = watch::channel(0);
    let unlucky = runnable(move |cx: RunContext| {
        let (led, lost, mut failing) = (led.clone(), lost.clone(), failing.clone());
        runs.send_modify(|runs| *runs += 1);
        async move {
            cx.ready();
            drop(cx.leadership().term().await);
            led.send_modify(|times| *times += 1);
            cx.leadership().vacant().await;
            lost.send_modify(|times| *times += 1);
            let times = *lost.borrow();
            failing.wait_for(|notified| *notified >= times).await?;
            Err("a reason of its own".into())
        }
    });
    stage.start(&unlucky, (&leadership, None));
    let terms = [Duration::from_secs(1), Duration::from_secs(3600)];
    for (time, delay) in (1..).zip(terms) {
        // Soon after the end of a term it starts again.
        has_begun.wait_for(|runs| *runs == time).await.unwrap();
        keeper.grant(Fence::open());
        has_led.wait_for(|times| *times == time).await.unwrap();
        keeper.revoke();
        has_lost.wait_for(|times| *times == time).await.unwrap();
        stage.clock.advance(delay);
        fail.send_replace(time);
    }
    assert_eq!(stage.failure().await, "a reason of its own");
    assert_eq!(*has_begun.borrow(), 2);
}

// R68
#[tokio::test]
async fn guarantee_2_a_holder_of_a_term_is_cancelled_with_it_also_while_stopping() {
    let mut stage = Stage::new();
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(Fence::open());
    let (notified, is_notified) = oneshot::channel();
    let notified = Mutex::new(Some(notified));
    let slow = runnable(move |cx| {
        let notified = notified.lock().take();
        async move {
            cx.stop().requested().await;
            let _ = notified.map(|notified| notified.send(()));
            std::future::pending().await
        }
    });
    stage.start(&slow, (&leadership, leadership.try_term()));
    // Time stands still, so the shutdown timeout never passes.
    let deadline = stage.now() + std::time::Duration::from_secs(30);
    let stopping = stage.supervisor.stop(deadline, |_| true);
    let losing = async {
        is_notified.await.unwrap();
        keeper.revoke();
    };
    let (late, ()) = futures::join!(stopping, losing);
    assert!(late.is_empty() && keeper.is_vacated());
}

#[tokio::test]
async fn guarantee_3_a_warm_up_that_has_ended_well_stands_as_ready_until_it_is_let_go() {
    let mut stage = Stage::new();
    stage.start(&runnable(async |_| Ok(())), (&Leadership::always(), None));
    let statuses = stage.runtime.statuses().clone();
    statuses.when_settled(|settled| settled.contains("one")).await;
    stage.supervisor.begun().await;
    assert_eq!(statuses.of("one"), Some(RunnableStatus::Ready));
    let now = stage.now();
    stage.supervisor.stop(now, |_| true).await;
    assert!(statuses.all().is_empty() && statuses.settled().is_empty());
}
