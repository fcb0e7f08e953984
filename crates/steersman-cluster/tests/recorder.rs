// SPDX-License-Identifier: Apache-2.0
//! Events as they are on the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace},
    events::v1::Event,
    rbac::v1::ClusterRole,
};
use steersman_cache::Query;
use steersman_cluster::{Client, Cluster, DeleteOptions, EventType, Fence};
use steersman_core::{ObjectKey, TestClock};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{builder, cluster, config_map, logged::Logged, requests};

const MINUTE: Duration = Duration::from_secs(60);

async fn made(fixture: &Fixture, name: &str) -> ConfigMap {
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(fixture.client(), fixture.namespace());
    let map = config_map(fixture, name, "first");
    maps.create(&Default::default(), &map).await.unwrap()
}

/// The events about an object.
async fn events(client: &Client, namespace: &str, name: &str) -> Vec<Arc<Event>> {
    let all = client
        .live()
        .list::<Event>(&Query::new().namespace(namespace))
        .await
        .unwrap();
    let about =
        |event: &Arc<Event>| event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name);
    all.into_iter().filter(about).collect()
}

fn count(event: &Event) -> i32 {
    event.series.as_ref().map_or(1, |series| series.count)
}

// R55, R173
#[steersman_testing::test]
async fn guarantee_4_an_event_is_sent_to_the_cluster_of_its_recorder(fixture: Fixture) {
    let (here, there) = (fixture.proxy().await, fixture.proxy().await);
    let a = cluster(&fixture, &here).await;
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    let b = builder(&fixture, &there)
        .wall_clock(move || wall)
        .build()
        .await
        .unwrap();
    let (map, other) = (made(&fixture, "a").await, made(&fixture, "b").await);
    let recorder = b.recorder("web");
    recorder
        .about(&map)
        .related(&other)
        .event(EventType::Warning, "Failed", "Mounting", "there is no room");
    recorder.flush().await;
    assert!(here.exchanges().is_empty());
    assert_eq!(a.events().recorded, 0);

    let [event] = events(&b.live(), fixture.namespace(), "a")
        .await
        .try_into()
        .unwrap();
    assert_eq!(event.reason.as_deref(), Some("Failed"));
    assert_eq!(event.action.as_deref(), Some("Mounting"));
    assert_eq!(event.note.as_deref(), Some("there is no room"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reporting_controller.as_deref(), Some("web"));
    assert!(event.reporting_instance.as_deref().unwrap().starts_with("web-"));
    let regarding = event.regarding.as_ref().unwrap();
    assert_eq!(
        (&regarding.uid, regarding.kind.as_deref()),
        (&map.metadata.uid, Some("ConfigMap"))
    );
    assert_eq!(event.related.as_ref().unwrap().uid, other.metadata.uid);
    assert!(event.series.is_none());
    let time = serde_json::to_value(&event.event_time).unwrap();
    assert_eq!(time, "2030-03-17T17:46:40.000000Z");
}

// R55
#[steersman_testing::test]
async fn guarantee_2_the_same_event_again_is_a_series(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (recorder, map) = (cluster.recorder("web"), made(&fixture, "a").await);
    let again = |times: usize, note: &str| {
        (0..times).for_each(|_| recorder.event(&map, EventType::Normal, "Synced", "Syncing", note));
    };
    let seen = async || {
        recorder.flush().await;
        let mut counts: Vec<_> = events(&cluster.live(), fixture.namespace(), "a")
            .await
            .iter()
            .map(|event| count(event))
            .collect();
        counts.sort_unstable();
        counts
    };
    again(1, "fine");
    assert_eq!(seen().await, [1]);
    again(1, "fine");
    assert_eq!(seen().await, [2]);
    again(8, "fine");
    again(1, "something else");
    assert_eq!(seen().await, [1, 2], "not more often than once a minute");
    let sent = requests(&proxy).len();
    clock.advance(MINUTE);
    while requests(&proxy).len() == sent {
        tokio::task::yield_now().await;
    }
    assert_eq!(seen().await, [1, 10]);

    // The server keeps events for some time only.
    for event in events(&cluster.live(), fixture.namespace(), "a").await {
        let key = ObjectKey::new(fixture.namespace(), event.metadata.name.as_deref().unwrap());
        cluster
            .live()
            .delete::<Event>(&key, DeleteOptions::default())
            .await
            .unwrap();
    }
    clock.advance(MINUTE);
    again(1, "fine");
    assert_eq!(seen().await, [1]);
    assert_eq!(cluster.events().dropped, 0);
}

#[steersman_testing::test]
async fn guarantee_1_recording_does_not_wait_for_the_server(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (recorder, map) = (cluster.recorder("web"), made(&fixture, "a").await);
    let stall = proxy.inject(Matching::method("POST").path("/events"), Fault::stall());
    recorder.event(&map, EventType::Normal, "First", "Testing", "");
    stall.hit().await;
    for number in 0..1500 {
        recorder.event(&map, EventType::Normal, "Next", "Testing", &number.to_string());
    }
    let counts = cluster.events();
    assert_eq!((counts.recorded, counts.dropped), (1501, 500));
    drop(stall);
    recorder.flush().await;
    // As many as there may be about one object.
    assert_eq!(events(&cluster.live(), fixture.namespace(), "a").await.len(), 25);
    assert_eq!(cluster.events().dropped, 1501 - 25);
}

#[steersman_testing::test]
async fn guarantee_4_events_pass_fences(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let map = made(&fixture, "a").await;
    let (keeper, fence) = Fence::new(Arc::new(clock));
    let recorder = cluster.recorder("web").fenced(fence);
    recorder.event(&map, EventType::Normal, "HeldBack", "Testing", "");
    recorder.flush().await;
    assert_eq!((requests(&proxy).len(), cluster.events().dropped), (0, 1));
    keeper.open_until(None);
    recorder.event(&map, EventType::Normal, "Passed", "Testing", "");
    recorder.flush().await;
    let [event] = events(&cluster.live(), fixture.namespace(), "a")
        .await
        .try_into()
        .unwrap();
    assert_eq!(event.reason.as_deref(), Some("Passed"));
}

#[steersman_testing::test]
async fn guarantee_5_truncates_long_texts(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let namespaces: kube::Api<Namespace> = kube::Api::all(fixture.client());
    // It has no namespace itself.
    let namespace = namespaces.get(fixture.namespace()).await.unwrap();
    let long = "x".repeat(5000);
    let recorder = cluster.recorder("web");
    recorder.event(&namespace, EventType::Normal, &long, &long, &long);
    recorder.flush().await;
    let [event] = events(&cluster.live(), "default", fixture.namespace())
        .await
        .try_into()
        .unwrap();
    assert_eq!(event.reason.as_ref().unwrap().len(), 128);
    assert_eq!(event.note.as_ref().unwrap().len(), 1024);
}

#[steersman_testing::test]
async fn retries_an_event_that_was_not_written(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let cluster: Cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (recorder, map) = (cluster.recorder("web"), made(&fixture, "a").await);
    let broken = proxy.inject(
        Matching::method("POST").path("/events").first(2),
        Fault::answer(500),
    );
    recorder.event(&map, EventType::Normal, "Late", "Testing", "");
    let (flushed, ()) = futures::join!(recorder.flush(), async {
        for tries in 1..=2 {
            broken.hit_times(tries).await;
            clock.advance_to(support::next_deadline(&clock, Duration::from_secs(10)).await);
        }
    });
    let () = flushed;
    assert_eq!(events(&cluster.live(), fixture.namespace(), "a").await.len(), 1);
    assert_eq!(cluster.events().dropped, 0);
}

#[steersman_testing::test]
async fn guarantee_6_logs_a_rejection_once_with_the_server_message(fixture: Fixture) {
    let logged = Logged::of_process();
    let (user, map) = (fixture.user("poor").await, made(&fixture, "a").await);
    let config = fixture.endpoint().config(user.identity()).unwrap();
    let cluster = Cluster::builder("home").config(config).build().await.unwrap();
    let component = format!("web-{}", fixture.namespace());
    let recorder = cluster.recorder(&component);
    for reason in ["First", "Second"] {
        recorder.event(&map, EventType::Normal, reason, "Testing", "");
    }
    recorder.flush().await;
    assert_eq!(cluster.events().dropped, 2);
    let lines = logged.lines();
    let warnings: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("WARN") && line.contains(&component))
        .collect();
    let [warning] = warnings[..] else {
        panic!("{warnings:#?}")
    };
    for part in [
        "grant the account `create` and `patch` on `events.events.k8s.io`",
        "cannot create resource \"events\"",
        user.identity().name(),
        "cluster=home",
    ] {
        assert!(warning.contains(part), "{part} in {warning}");
    }

    // Once it is granted, nothing has to be started anew.
    let _ = user
        .grant("events.k8s.io", &["events"], &["create", "patch"])
        .await
        .unwrap();
    recorder.event(&map, EventType::Normal, "Third", "Testing", "");
    recorder.flush().await;
    assert_eq!(cluster.events().dropped, 2);
}

#[steersman_testing::test]
async fn guarantee_6_a_deleted_namespace_causes_no_warning(fixture: Fixture) {
    let logged = Logged::of_process();
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let component = format!("late-{}", fixture.namespace());
    let recorder = cluster.recorder(&component);
    let mut map = config_map(&fixture, "a", "first");
    map.metadata.namespace = Some(format!("no-{}", fixture.namespace()));
    recorder.event(&map, EventType::Normal, "Late", "Testing", "");
    recorder.flush().await;
    assert_eq!(cluster.events().dropped, 1);
    let about: Vec<_> = logged
        .lines()
        .into_iter()
        .filter(|line| line.contains(&component))
        .collect();
    assert!(about.iter().any(|line| line.starts_with("DEBUG")), "{about:?}");
    assert!(!about.iter().any(|line| line.starts_with("WARN")), "{about:?}");
}

// R55
#[steersman_testing::test]
async fn guarantee_7_writes_events_with_any_names(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let odd = format!("system:{}", fixture.namespace());
    let long = format!("{}-{}", "a".repeat(235), fixture.namespace());
    for (name, component) in [
        (odd.as_str(), "web"),
        (&long, "my controller/of things"),
        ("a", &"x".repeat(200)),
    ] {
        let mut role = ClusterRole::default();
        role.metadata.name = Some(name.to_owned());
        let recorder = cluster.recorder(component);
        recorder.event(&role, EventType::Normal, "Granted", "Granting", "");
        recorder.flush().await;
    }
    assert_eq!(cluster.events().dropped, 0);
    for name in [odd, long] {
        assert_eq!(events(&cluster.live(), "default", &name).await.len(), 1);
    }
}

#[steersman_testing::test]
async fn guarantee_8_a_series_has_the_time_of_its_last_event(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let wall = Arc::new(AtomicU64::new(1_900_000_000));
    let told = Arc::clone(&wall);
    let cluster = builder(&fixture, &proxy)
        .clock(Arc::new(clock.clone()))
        .wall_clock(move || SystemTime::UNIX_EPOCH + Duration::from_secs(told.load(Ordering::Relaxed)))
        .build()
        .await
        .unwrap();
    let (recorder, map) = (cluster.recorder("web"), made(&fixture, "a").await);
    for _ in 0..3 {
        recorder.event(&map, EventType::Normal, "Synced", "Syncing", "");
    }
    recorder.flush().await;
    // The third is written a minute later.
    let sent = requests(&proxy).len();
    wall.fetch_add(60, Ordering::Relaxed);
    clock.advance(MINUTE);
    while requests(&proxy).len() == sent {
        tokio::task::yield_now().await;
    }
    recorder.flush().await;
    let [event] = events(&cluster.live(), fixture.namespace(), "a")
        .await
        .try_into()
        .unwrap();
    let series = serde_json::to_value(&event.series).unwrap();
    assert_eq!(series["count"], 3);
    assert_eq!(series["lastObservedTime"], "2030-03-17T17:46:40.000000Z");
}
