// SPDX-License-Identifier: Apache-2.0
//! What a supervisor promises.

use steersman_cluster::Fence;
use steersman_controller::{LeadershipKeeper, RunFn, Standing, run_fn};
use steersman_core::{Random, Spawner, TestClock};
use tokio::sync::oneshot;

use super::*;

struct Stage {
    surroundings: Arc<RunSurroundings>,
    supervisor: Supervisor,
    stop: Stop,
    _handle: StopHandle,
}

impl Stage {
    fn new() -> Self {
        let (clock, random) = (Arc::new(TestClock::new()), Arc::new(Random::from_seed(7)));
        let surroundings = Arc::new(RunSurroundings::new(clock, random, Spawner::current()));
        let (handle, stop) = StopHandle::new();
        Self {
            supervisor: Supervisor::new(&surroundings, &Leaving::default()),
            surroundings,
            stop,
            _handle: handle,
        }
    }

    fn now(&self) -> Moment {
        self.surroundings.clock().now()
    }

    fn start(&mut self, runnable: &BoxRunnable, turn: (&Leadership, Option<Term>)) {
        let due = (&self.stop, self.now());
        self.supervisor.start(runnable, turn, due);
    }
}

fn runnable<F, Fut>(function: F) -> BoxRunnable
where
    F: Fn(RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send,
    RunFn<F>: Runnable,
{
    BoxRunnable::new(run_fn("one", function).needing(Needs::WarmUp))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarantee_1_what_was_cancelled_is_gone_before_the_next_of_its_name_begins() {
    let mut stage = Stage::new();
    let (runs, mut begun) = watch::channel(0);
    let (go_on, blocked) = std::sync::mpsc::channel::<()>();
    let (runs, blocked) = (Arc::new(runs), Mutex::new(Some(blocked)));
    let deaf = runnable(move |cx| {
        runs.send_modify(|runs| *runs += 1);
        let blocked = blocked.lock().unwrap().take();
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
    // Others start meanwhile.
    stage.supervisor.begun().await;
    assert_eq!(*begun.borrow(), 1);
    go_on.send(()).unwrap();
    begun.wait_for(|runs| *runs == 2).await.unwrap();
    let is_ready = |all: &BTreeMap<String, Standing>| all.get("one") == Some(&Standing::Ready);
    stage.surroundings.standings().when(is_ready).await;
    stage
        .supervisor
        .stop(Moment::from_nanos(u64::MAX), |_| true)
        .await;
}

// R68, R177
#[tokio::test]
async fn guarantee_2_what_fails_because_its_term_is_over_is_no_failure() {
    let mut stage = Stage::new();
    let (fence_keeper, fence) = Fence::new(Arc::clone(stage.surroundings.clock()));
    fence_keeper.open_until(None);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(fence.clone());
    let (fail, failing) = watch::channel(false);
    let careless = runnable(move |_| {
        let mut failing = failing.clone();
        async move {
            failing.wait_for(|failing| *failing).await?;
            Err("held back".into())
        }
    });
    stage.start(&careless, (&leadership, leadership.try_term()));
    stage.supervisor.begun().await;
    fence_keeper.close("the time is up");
    fail.send_replace(true);
    keeper.vacated().await;
    assert!(stage.supervisor.unheard().is_empty(), "the term ends soon");

    // With a term it is a failure as any other.
    keeper.grant(Fence::open());
    let now = stage.now();
    stage.supervisor.stop(now, |_| true).await;
    stage.start(&careless, (&leadership, leadership.try_term()));
    let Change::Failed(failure) = stage.supervisor.changed().await else {
        panic!("nothing was dismissed");
    };
    assert_eq!(failure.error.to_string(), "held back");
}

// R68
#[tokio::test]
async fn guarantee_2_what_holds_a_term_is_cancelled_with_it_also_while_it_is_stopping() {
    let mut stage = Stage::new();
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(Fence::open());
    let (told, is_told) = oneshot::channel();
    let told = Mutex::new(Some(told));
    let slow = runnable(move |cx| {
        let told = told.lock().unwrap().take();
        async move {
            cx.stop().requested().await;
            let _ = told.map(|told| told.send(()));
            std::future::pending().await
        }
    });
    stage.start(&slow, (&leadership, leadership.try_term()));
    // Time stands still, so that the grace period is never over.
    let deadline = stage.now() + std::time::Duration::from_secs(30);
    let stopping = stage.supervisor.stop(deadline, |_| true);
    let losing = async {
        is_told.await.unwrap();
        keeper.revoke();
    };
    let (late, ()) = futures::join!(stopping, losing);
    assert!(late.is_empty() && keeper.is_vacated());
}

#[tokio::test]
async fn guarantee_3_a_warm_up_that_has_ended_well_stands_as_ready_until_it_is_let_go() {
    let mut stage = Stage::new();
    stage.start(&runnable(async |_| Ok(())), (&Leadership::always(), None));
    let standings = stage.surroundings.standings().clone();
    standings.when_settled(|settled| settled.contains("one")).await;
    stage.supervisor.begun().await;
    assert_eq!(standings.of("one"), Some(Standing::Ready));
    let now = stage.now();
    stage.supervisor.stop(now, |_| true).await;
    assert!(standings.all().is_empty() && standings.settled().is_empty());
}
