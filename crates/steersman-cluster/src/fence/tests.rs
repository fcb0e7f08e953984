// SPDX-License-Identifier: Apache-2.0
use std::pin::pin;

use futures::{FutureExt, poll};
use steersman_core::TestClock;

use super::*;

const LEASE: Duration = Duration::from_secs(10);

fn fence() -> (TestClock, FenceKeeper, Fence) {
    let clock = TestClock::new();
    let (keeper, fence) = Fence::new(Arc::new(clock.clone()));
    (clock, keeper, fence)
}

fn reason(fence: &Fence) -> String {
    fence.check().unwrap_err().reason.to_string()
}

#[test]
fn guarantee_1_rejects_at_the_deadline_and_when_closed() {
    let (clock, keeper, fence) = fence();
    keeper.open_until(Some(clock.now() + LEASE));
    assert_eq!(fence.remaining(), Some(LEASE));
    clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(fence.check(), Ok(()));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(reason(&fence), "the deadline of the fence has passed");

    keeper.open_until(None);
    assert_eq!((fence.check(), fence.remaining()), (Ok(()), None));
    keeper.close("the lease was lost");
    assert_eq!(reason(&fence), "the lease was lost");
    assert_eq!(fence.remaining(), Some(Duration::ZERO));
}

#[tokio::test]
async fn guarantee_2_closing_wakes_waiters() {
    let (_clock, keeper, fence) = fence();
    keeper.open_until(None);
    let mut closed = pin!(fence.closed());
    assert!(poll!(&mut closed).is_pending());
    keeper.close("the lease was lost");
    assert_eq!(&*closed.await.reason, "the lease was lost");
}

#[tokio::test]
async fn guarantee_3_waits_for_an_extended_deadline() {
    let (clock, keeper, fence) = fence();
    keeper.open_until(Some(clock.now() + LEASE));
    let mut closed = pin!(fence.closed());
    assert!(poll!(&mut closed).is_pending());
    clock.advance(LEASE / 2);
    keeper.open_until(Some(clock.now() + LEASE));
    // The first deadline passes.
    clock.advance(LEASE * 3 / 4);
    assert!(poll!(&mut closed).is_pending());
    clock.advance(LEASE / 4);
    assert!(poll!(&mut closed).is_ready());
}

#[tokio::test]
async fn guarantee_4_is_closed_before_it_is_opened_and_after_its_keeper_is_dropped() {
    let (clock, keeper, fence) = fence();
    assert!(fence.check().is_err());
    keeper.open_until(Some(clock.now() + LEASE));
    let mut closed = pin!(fence.closed());
    assert!(poll!(&mut closed).is_pending());
    drop(keeper);
    assert!(poll!(&mut closed).is_ready());
    assert!(fence.check().is_err());
    assert!(fence.closed().now_or_never().is_some());
}

#[tokio::test]
async fn guarantee_5_suspended_time_counts() {
    let (clock, keeper, fence) = fence();
    let since = clock.mark();
    clock.advance(LEASE / 2);
    keeper.open_for(LEASE, since);
    assert_eq!(
        fence.remaining(),
        Some(LEASE / 2),
        "it counts from then, not from now"
    );
    let mut closed = pin!(fence.closed());
    assert!(poll!(&mut closed).is_pending());
    clock.suspend(LEASE / 2);
    assert!(fence.check().is_err());
    assert!(poll!(&mut closed).is_ready(), "whatever woke it");

    keeper.open_for(LEASE, clock.mark());
    let mut closed = pin!(fence.closed());
    assert!(poll!(&mut closed).is_pending());
    clock.set_wall(std::time::SystemTime::UNIX_EPOCH);
    assert!(
        fence.check().is_ok(),
        "a calendar that is set back gives no time and takes none"
    );
    clock.advance(LEASE);
    assert!(poll!(&mut closed).is_ready());
}

#[tokio::test]
async fn guarantee_6_an_extended_fence_rejects_no_request() {
    let (clock, keeper, fence) = fence();
    let extend = || keeper.extend_for(LEASE, clock.mark());
    assert!(!extend() && fence.check().is_err(), "it was not open");
    keeper.open_for(LEASE, clock.mark());
    clock.advance(LEASE / 2);
    assert!(extend());
    assert_eq!(fence.remaining(), Some(LEASE));
    clock.advance(LEASE);
    assert!(!extend() && fence.check().is_err());

    keeper.open_for(LEASE, clock.mark());
    let before = clock.wall();
    clock.set_wall(before + LEASE);
    assert!(fence.check().is_err());
    clock.set_wall(before);
    assert!(fence.check().is_err() && !extend());
    assert_eq!(fence.remaining(), Some(Duration::ZERO));
    keeper.close("the lease was lost");
    assert!(!extend());
    assert_eq!(reason(&fence), "the lease was lost");
}

#[test]
fn a_dropped_keeper_keeps_its_reason() {
    let (_clock, keeper, fence) = fence();
    keeper.close("the cluster was removed");
    drop(keeper);
    assert_eq!(reason(&fence), "the cluster was removed");
}

#[tokio::test]
async fn a_fence_without_a_keeper_is_always_open() {
    let fence = Fence::open();
    assert_eq!((fence.check(), fence.remaining()), (Ok(()), None));
    assert!(fence.closed().now_or_never().is_none());
}
