// SPDX-License-Identifier: Apache-2.0
//! Looking at everything again, now and then.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{sync::Arc, time::Duration};

use steersman_cache::{Delivery, Event, Informer, InformerOptions};
use steersman_core::{Clock, TestClock};
use steersman_testing::Fixture;
use support::{Heard, Maps, config_maps, context_at, here, informer, next_deadline};

// R132
#[steersman_testing::test]
async fn resyncs_each_handler_at_its_interval(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a", "b"]).await;
    let clock = TestClock::new();
    let informer = Informer::start(
        &context_at(fixture.client(), Arc::new(clock.clone())),
        config_maps(),
        here(&fixture),
        InformerOptions::default(),
    );
    informer.synced().await;
    let (often, seldom, never) = (Heard::default(), Heard::default(), Heard::default());
    let period = Duration::from_secs(10);
    let _often = informer.handle_with_resync("often", period, often.handler());
    let _seldom = informer.handle_with_resync("seldom", 6 * period, seldom.handler());
    let _never = informer.handle("never", never.handler());

    // A period is a tenth longer at most.
    let longest = period + period / 10;
    for round in 1..=4 {
        next_deadline(&clock, longest).await;
        clock.advance(longest);
        assert_eq!(often.count(2 + 2 * round).await.len(), 2 + 2 * round);
    }
    assert_eq!(seldom.said().len(), 2, "its period is not over");
    while seldom.said().len() < 4 {
        next_deadline(&clock, longest).await;
        clock.advance(longest);
    }
    let resynced = ["initial a", "initial b", "resynced a", "resynced b"];
    assert_eq!(support::sorted(often.said()[..4].to_vec()), resynced);
    assert_eq!(support::sorted(seldom.said()), resynced);
    assert_eq!(support::sorted(never.said()), ["initial a", "initial b"]);
}

// R144
#[steersman_testing::test]
async fn handlers_use_the_resync_interval_of_their_kind(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create_all(&["a"]).await;
    let clock = TestClock::new();
    let (period, hour) = (Duration::from_secs(10), Duration::from_secs(3600));
    let informer = Informer::start(
        &context_at(fixture.client(), Arc::new(clock.clone())),
        config_maps(),
        here(&fixture),
        InformerOptions::default().resync(period),
    );
    informer.synced().await;
    let (usual, own) = (Heard::default(), Heard::default());
    let _usual = informer.handle("usual", usual.handler());
    let _own = informer.handle_with_resync("own", hour, own.handler());
    let longest = period + period / 10;
    next_deadline(&clock, longest).await;
    clock.advance(longest);
    assert_eq!(usual.count(2).await, ["initial a", "resynced a"]);
    assert_eq!(own.said(), ["initial a"]);
}

// R125
#[steersman_testing::test]
async fn a_change_does_not_wait_for_a_resync(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let clock = TestClock::new();
    let context = context_at(fixture.client(), Arc::new(clock.clone()));
    let informer = informer(&fixture, &context);
    let heard = Heard::default();
    let period = Duration::from_secs(60);
    let _registration = informer.handle_with_resync("test", period, heard.handler());
    informer.synced().await;

    // The clock stands still, and changes come all the same.
    maps.create("a").await;
    maps.set("a", "second").await;
    assert_eq!(heard.count(2).await, ["added a", "updated a"]);
    next_deadline(&clock, period + period / 10).await;
    clock.advance(period + period / 10);
    assert_eq!(heard.count(3).await[2], "resynced a");
    maps.delete("a").await;
    assert_eq!(heard.count(4).await[3], "deleted a");
}

// R147
#[steersman_testing::test]
async fn a_resync_does_not_wake_a_handler_of_changes(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    maps.create("a").await;
    let clock = TestClock::new();
    let context = context_at(fixture.client(), Arc::new(clock.clone()));
    let informer = informer(&fixture, &context);
    let (all, changes) = (Heard::default(), Heard::default());
    let period = Duration::from_secs(5);
    let _all = informer.handle_with_resync("all", period, all.handler());
    let wanted = changes.handler();
    let _changes = informer.handle_with_resync("changes", period, move |event: &Event| {
        if event.is_change() {
            steersman_cache::EventHandler::on(&wanted, event);
        }
    });
    informer.synced().await;
    // The deadline that is seen may be that of the other one.
    while all.said().len() < 4 {
        let heard = all.said().len();
        next_deadline(&clock, period + period / 10).await;
        clock.advance(period + period / 10);
        // So that time does not run ahead of a watch, which may be silent for ten minutes.
        let _ = tokio::time::timeout(Duration::from_millis(100), all.count(heard + 1)).await;
    }
    assert_eq!(all.said()[1..4], ["resynced a"; 3]);
    maps.set("a", "second").await;
    assert_eq!(changes.count(2).await, ["initial a", "updated a"]);
}

// R132
#[steersman_testing::test]
async fn resyncs_a_subscription_at_its_interval(fixture: Fixture) {
    let maps = Maps::of(&fixture);
    let clock = TestClock::new();
    let context = context_at(fixture.client(), Arc::new(clock.clone()));
    let informer = informer(&fixture, &context);
    let period = Duration::from_secs(60);
    let mut events = informer.subscribe_with_resync("test", 10, period);
    informer.synced().await;
    maps.create("a").await;
    let mut next = async || match events.next().await {
        Some(Delivery::Event(event)) => support::say(&event),
        other => panic!("no event: {other:?}"),
    };
    assert_eq!(next().await, "added a");
    // A list has shorter ones, which end with it.
    while next_deadline(&clock, period + period / 10).await < clock.now() + period {
        tokio::task::yield_now().await;
    }
    clock.advance(period + period / 10);
    assert_eq!(next().await, "resynced a");
}
