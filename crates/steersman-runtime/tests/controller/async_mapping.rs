// SPDX-License-Identifier: Apache-2.0
//! Async mapping functions: `map_async`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use steersman_cache::Query;
use steersman_core::ObjectKey;
use steersman_runtime::{BoxError, Builder, Controller, MapContext, Request, kind, map_async};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{Calls, GRACE, Stage, config_map, delete, key, let_go_on, object, secret, until};
use tokio::sync::Semaphore;

/// A controller of maps with a label that no map has: only the mapping function enqueues keys.
fn maps() -> Builder<Request, ConfigMap> {
    Controller::of::<ConfigMap>("maps").labels("enqueued=never")
}

/// Key of the map that a secret names in its label `map`.
fn named(secret: &Secret) -> Option<ObjectKey> {
    let name = secret.metadata.labels.as_ref()?.get("map")?;
    Some(ObjectKey::new(secret.metadata.namespace.as_deref()?, name))
}

fn for_map(name: &str) -> Value {
    json!({"map": name})
}

// R118
#[steersman_testing::test]
async fn reads_the_cache_to_find_keys(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for name in ["a", "b"] {
        client.create(&config_map(&fixture, name, "1")).await.unwrap();
    }
    let calls = Calls::new();
    let every_map = map_async(|secret: Arc<Secret>, cx: MapContext| async move {
        let namespace = secret.metadata.namespace.clone().unwrap_or_default();
        let query = Query::new().namespace(&namespace);
        let maps = cx.client().list::<ConfigMap>(&query).await?;
        let names = maps.iter().filter_map(|map| map.metadata.name.clone());
        let keys: Vec<ObjectKey> = names
            .filter(|name| name.len() == 1)
            .map(|name| ObjectKey::new(&namespace, &name))
            .collect();
        Ok::<_, BoxError>(keys)
    });
    let controller = Controller::<Request>::named("maps")
        .reads(kind::<ConfigMap>())
        .watches(kind::<Secret>(), every_map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    assert!(calls.all().is_empty());
    client.create(&secret(&fixture, "s", &json!({}))).await.unwrap();
    calls.reach("a", 1).await;
    calls.reach("b", 1).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn its_client_cannot_write(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    stage
        .live()
        .create(&secret(&fixture, "s", &json!({})))
        .await
        .unwrap();
    let (calls, written) = (Calls::new(), Arc::new(Mutex::new(None)));
    let (seen, map) = (Arc::clone(&written), config_map(&fixture, "written", "1"));
    let writing = map_async(move |_: Arc<Secret>, cx: MapContext| {
        let (seen, map) = (Arc::clone(&seen), map.clone());
        async move {
            let error = cx.client().create(&map).await.unwrap_err();
            *seen.lock().unwrap() = Some(error.is_fenced());
            Ok::<_, BoxError>(None::<ObjectKey>)
        }
    });
    let controller = maps()
        .watches(kind::<Secret>(), writing)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    assert_eq!(*written.lock().unwrap(), Some(true));
    running.stop(GRACE).await.unwrap();
}

// R118
#[steersman_testing::test]
async fn guarantee_1_and_4_a_slow_call_delays_readiness_and_no_other_source(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&secret(&fixture, "slow", &for_map("a")))
        .await
        .unwrap();
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(0)));
    let waiting = Arc::clone(&gate);
    let slow = map_async(move |secret: Arc<Secret>, _| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire().await?.forget();
            Ok::<_, BoxError>(named(&secret))
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .watches(kind::<Secret>(), slow)
        .build(&stage.cluster, calls.only());
    // Shares the informer of secrets.
    let other_calls = Calls::new();
    let other = Controller::of::<Secret>("secrets").build(&stage.cluster, other_calls.only());
    let running = [stage.run(&controller), stage.run(&other)];
    other_calls.reach("slow", 1).await;
    client
        .create(&secret(&fixture, "later", &for_map("b")))
        .await
        .unwrap();
    client.create(&config_map(&fixture, "c", "1")).await.unwrap();
    other_calls.reach("later", 1).await;
    let_go_on().await;
    assert!(calls.all().is_empty(), "the source is not ready");
    gate.add_permits(10);
    calls.reach("a", 1).await;
    calls.reach("b", 1).await;
    calls.reach("c", 1).await;
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

#[steersman_testing::test]
async fn guarantee_2_an_object_that_changes_while_it_waits_is_mapped_from_its_oldest_and_newest_state(
    fixture: Fixture,
) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&secret(&fixture, "s", &for_map("first")))
        .await
        .unwrap();
    client
        .create(&secret(&fixture, "t", &for_map("blocking")))
        .await
        .unwrap();
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(2)));
    let (mapped, waiting) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&gate));
    let seen = Arc::clone(&mapped);
    let map = map_async(move |secret: Arc<Secret>, _| {
        let (seen, waiting) = (Arc::clone(&seen), Arc::clone(&waiting));
        async move {
            waiting.acquire().await?.forget();
            let key = named(&secret);
            seen.lock()
                .unwrap()
                .extend(key.clone().map(|key| key.name().to_owned()));
            Ok::<_, BoxError>(key)
        }
    });
    let informer = stage
        .cluster
        .cache()
        .informer(&steersman_cache::Resource::of::<Secret>());
    let controller = maps()
        .watches(kind::<Secret>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    // One call is under way, and is held up.
    client
        .update(&secret(&fixture, "t", &for_map("held")))
        .await
        .unwrap();
    let label = |name: &str| {
        let object = informer.store().get(fixture.namespace(), name);
        object.and_then(|object| object.label("map").map(|value| value.to_string()))
    };
    until(|| label("t").as_deref() == Some("held")).await;
    for name in ["second", "third", "fourth"] {
        client
            .update(&secret(&fixture, "s", &for_map(name)))
            .await
            .unwrap();
        until(|| label("s").as_deref() == Some(name)).await;
    }
    mapped.lock().unwrap().clear();
    gate.add_permits(100);
    calls.reach("fourth", 1).await;
    calls.reach("first", 2).await;
    let mapped = mapped.lock().unwrap().clone();
    assert_eq!(mapped, ["held", "blocking", "fourth", "first"]);
    assert_eq!(calls.count("second") + calls.count("third"), 0);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_3_failures_panics_and_timeouts_are_retried_and_delay_no_other_object(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    for name in ["fails", "hangs", "panics", "works"] {
        client
            .create(&secret(&fixture, name, &for_map(name)))
            .await
            .unwrap();
    }
    let (calls, attempts) = (Calls::new(), Arc::new(AtomicUsize::new(0)));
    let first = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let (tries, firsts) = (Arc::clone(&attempts), Arc::clone(&first));
    let map = map_async(move |secret: Arc<Secret>, _| {
        tries.fetch_add(1, Ordering::SeqCst);
        let key = named(&secret).unwrap();
        let is_first = firsts.lock().unwrap().insert(key.name().to_owned());
        async move {
            match key.name() {
                "fails" if is_first => Err("the moon is full".into()),
                "hangs" if is_first => std::future::pending().await,
                "panics" if is_first => panic!("out of order"),
                _ => Ok::<_, BoxError>(Some(key)),
            }
        }
    });
    let controller = maps()
        .watches(kind::<Secret>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    until(|| first.lock().unwrap().contains("hangs")).await;
    clock.advance(Duration::from_secs(30));
    // The controller begins after each object was tried once.
    calls.reach("works", 1).await;
    for name in ["fails", "hangs", "panics"] {
        until(|| {
            clock.advance(Duration::from_millis(100));
            calls.count(name) == 1
        })
        .await;
    }
    assert_eq!(attempts.load(Ordering::SeqCst), 7);
    assert_eq!(stage.count("steersman_map_failures_total", "maps"), 3);
    assert_eq!(stage.count("steersman_controller_panics_total", "maps"), 1);
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_read_that_the_server_refuses_is_retried(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    client
        .create(&secret(&fixture, "s", &for_map("a")))
        .await
        .unwrap();
    let map = map_async(|secret: Arc<Secret>, cx: MapContext| async move {
        let Some(key) = named(&secret) else {
            return Ok(None);
        };
        let map = cx.client().live().get::<ConfigMap>(&key).await?;
        Ok::<_, steersman_cluster::Error>(map.map(|_| key))
    });
    let refused = proxy.inject(Matching::method("GET").path("/configmaps/a"), Fault::answer(403));
    let calls = Calls::new();
    let controller = maps()
        .watches(kind::<Secret>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    assert!(calls.all().is_empty());
    drop(refused);
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn guarantee_5_a_run_that_ends_maps_nothing_more_and_the_next_one_maps_everything(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    stage
        .live()
        .create(&secret(&fixture, "s", &for_map("a")))
        .await
        .unwrap();
    let (calls, gate, begun) = (
        Calls::new(),
        Arc::new(Semaphore::new(0)),
        Arc::new(Semaphore::new(0)),
    );
    let (waiting, beginning) = (Arc::clone(&gate), Arc::clone(&begun));
    let map = map_async(move |secret: Arc<Secret>, _| {
        let waiting = Arc::clone(&waiting);
        beginning.add_permits(1);
        async move {
            waiting.acquire().await?.forget();
            Ok::<_, BoxError>(named(&secret))
        }
    });
    let controller = maps()
        .watches(kind::<Secret>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    begun.acquire().await.unwrap().forget();
    let controller = running.stop(GRACE).await.unwrap();
    gate.add_permits(100);
    let_go_on().await;
    assert_eq!(controller.depth(), Default::default());
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_deleted_object_is_mapped_from_its_last_state(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&secret(&fixture, "s", &for_map("a")))
        .await
        .unwrap();
    let calls = Calls::new();
    let map = map_async(|secret: Arc<Secret>, _| async move { Ok::<_, BoxError>(named(&secret)) });
    let controller = maps()
        .watches(kind::<Secret>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    delete::<Secret>(&client, &key(&fixture, "s")).await;
    calls.reach("a", 2).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn an_object_that_cannot_be_decoded_is_skipped(fixture: Fixture) {
    #[derive(serde::Deserialize)]
    struct Strict {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        namespace: String,
        labels: std::collections::BTreeMap<String, String>,
    }
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let unlabelled: Secret = object(json!({"metadata": {"name": "s", "namespace": fixture.namespace()}}));
    client.create(&unlabelled).await.unwrap();
    client
        .create(&secret(&fixture, "t", &for_map("a")))
        .await
        .unwrap();
    let calls = Calls::new();
    let map = map_async(|secret: Arc<Strict>, _| async move {
        let name = secret.metadata.labels.get("map").cloned().unwrap_or_default();
        Ok::<_, BoxError>(Some(ObjectKey::new(&secret.metadata.namespace, &name)))
    });
    let controller = maps()
        .watches(steersman_runtime::projection::<Secret, Strict>(), map)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    calls.reach("a", 1).await;
    assert_eq!(stage.count("steersman_map_failures_total", "maps"), 0);
    running.stop(GRACE).await.unwrap();
}
