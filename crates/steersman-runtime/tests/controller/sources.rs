// SPDX-License-Identifier: Apache-2.0
//! Sources of keys, and the changes that become keys.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use serde_json::{Value, json};
use steersman_cache::{Event, Resource};
use steersman_cluster::Client;
use steersman_core::{Action, MonotonicTime, ObjectKey, TestClock};
use steersman_runtime::{
    Controller, LOW_PRIORITY, ObjectEvent, Predicate, Request, channel, dynamic, every, generation_changed,
    handle_fn, kind, labels_changed, map_fn, map_metadata, metadata, object_is, projection,
    resource_version_changed, stream,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Cut, Fault, Matching},
};
use support::{Calls, GRACE, Stage, config_map, delete, key, let_go_on, object, secret, until};
use tokio::sync::Semaphore;

/// A map that says whose it is.
fn child(fixture: &Fixture, name: &str, owners: &Value) -> ConfigMap {
    object(json!({
        "metadata": {"name": name, "namespace": fixture.namespace(), "ownerReferences": owners},
    }))
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true})
}

async fn uid(client: &Client, key: &ObjectKey) -> String {
    let secret = client.get_required::<Secret>(key).await.unwrap();
    secret.metadata.uid.clone().unwrap()
}

// R97, R118, R145
#[steersman_testing::test]
async fn only_declared_kinds_are_watched_and_each_once(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let namespace = fixture.namespace();
    let controllers: Vec<_> = (0..5)
        .map(|number| {
            Controller::of::<ConfigMap>(format!("maps-{number}"))
                .namespace(namespace)
                .labels("app=web")
                .owns::<Secret>()
                .watches(kind::<Secret>().fields("type=Opaque"), handle_fn(|_, _| {}))
                .build(&stage.cluster, Calls::new().only())
        })
        .collect();
    let running: Vec<_> = controllers.iter().map(|one| stage.run(one)).collect();
    for controller in &controllers {
        stage.stands(controller.name(), |is| is == "ready").await;
    }
    let all = proxy.exchanges();
    let watches = all.iter().filter(|one| one.is_watch() && one.is_open());
    let mut watched: Vec<String> = watches
        .map(|one| {
            let selectors = one.query.split('&').filter(|pair| pair.contains("Selector="));
            format!("{}?{}", one.path, selectors.collect::<Vec<_>>().join("&"))
        })
        .collect();
    watched.sort();
    let expected = [
        format!("/api/v1/namespaces/{namespace}/configmaps?labelSelector=app%3Dweb"),
        format!("/api/v1/namespaces/{namespace}/secrets?"),
        "/api/v1/secrets?fieldSelector=type%3DOpaque".to_owned(),
    ];
    assert_eq!(watched, expected);
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

// R114
#[steersman_testing::test]
async fn first_lists_and_resyncs_have_low_priority(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "old", "1")).await.unwrap();
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .resync(Duration::from_secs(600))
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    calls.reach("old", 1).await;
    client.create(&config_map(&fixture, "new", "1")).await.unwrap();
    calls.reach("new", 1).await;
    client.update(&config_map(&fixture, "old", "2")).await.unwrap();
    calls.reach("old", 2).await;
    delete::<ConfigMap>(&client, &key(&fixture, "old")).await;
    calls.reach("old", 3).await;
    // A tenth of jitter.
    until(|| {
        clock.advance(Duration::from_secs(1));
        calls.count("new") >= 2
    })
    .await;
    let priorities = |name: &str| -> Vec<i32> {
        let all = calls.all();
        let of_name = all.iter().filter(|call| call.key.ends_with(&format!("/{name}")));
        of_name.map(|call| call.priority).collect()
    };
    assert_eq!(priorities("old"), [LOW_PRIORITY, 0, 0]);
    assert_eq!(priorities("new")[..2], [0, LOW_PRIORITY]);
    running.stop(GRACE).await.unwrap();
}

// R114
#[steersman_testing::test]
async fn changes_do_not_wait_for_a_resync(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let client = stage.live();
    for number in 0..20 {
        let map = config_map(&fixture, &format!("old-{number}"), "1");
        client.create(&map).await.unwrap();
    }
    let (calls, gate) = (Calls::new(), Arc::new(Semaphore::new(20)));
    let reconciler = {
        let gate = Arc::clone(&gate);
        calls.then(move |_: Request, _, _| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::of::<ConfigMap>("maps")
        .resync(Duration::from_millis(100))
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    until(|| calls.all().len() == 20 && controller.depth() == Default::default()).await;
    // All of them again, and the one worker is held up with the first.
    while controller.depth().ready() < 19 {
        // A tenth of jitter, and far less than a watch may be silent.
        clock.advance(Duration::from_millis(110));
        let_go_on().await;
    }
    client.create(&config_map(&fixture, "new", "1")).await.unwrap();
    client.update(&config_map(&fixture, "old-7", "2")).await.unwrap();
    until(|| controller.depth().ready() == 20).await;
    let informer = stage.cluster.cache().informer(&Resource::of::<ConfigMap>());
    until(|| {
        let map = informer.store().get(fixture.namespace(), "old-7").unwrap();
        map.decoded::<ConfigMap>().unwrap().data.as_ref().unwrap()["value"] == "2"
    })
    .await;
    // Registration waits until the objects of the store were delivered.
    drop(informer.handle("test", |_: &Event| {}));
    gate.add_permits(3);
    calls.when(|calls| calls.len() >= 20 + 4).await;
    let all = calls.all();
    // The one that was under way may have been the one that changed.
    let next: BTreeSet<_> = all[21..23].iter().map(|call| call.key.as_str()).collect();
    let named = |name: &str| key(&fixture, name).to_string();
    let (new, changed) = (named("new"), named("old-7"));
    assert!(next.contains(&*new), "{next:?}");
    assert!(next.contains(&*changed), "{next:?}");
    gate.add_permits(100);
    running.stop(GRACE).await.unwrap();
}

// R147
#[steersman_testing::test]
async fn a_resync_causes_nothing_where_only_changes_are_wanted(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let (all, changed) = (Calls::new(), Calls::new());
    let every = Duration::from_secs(5);
    let one = Controller::of::<ConfigMap>("all")
        .resync(every)
        .build(&stage.cluster, all.only());
    let other = Controller::of::<ConfigMap>("changed")
        .resync(every)
        .when(resource_version_changed())
        .build(&stage.cluster, changed.only());
    let running = [stage.run(&one), stage.run(&other)];
    all.reach("a", 1).await;
    changed.reach("a", 1).await;
    for time in 2..=5 {
        until(|| {
            clock.advance(Duration::from_millis(100));
            all.count("a") >= time
        })
        .await;
    }
    assert_eq!(changed.count("a"), 1);
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

#[steersman_testing::test]
async fn both_the_owner_that_was_and_the_one_that_is_are_woken(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for name in ["before", "after", "shared"] {
        client.create(&secret(&fixture, name, &json!({}))).await.unwrap();
    }
    let mut uids = Vec::new();
    for name in ["before", "after", "shared"] {
        uids.push(uid(&client, &key(&fixture, name)).await);
    }
    let (only, every) = (Calls::new(), Calls::new());
    let owning = Controller::of::<Secret>("owning")
        .owns::<ConfigMap>()
        .build(&stage.cluster, only.only());
    let sharing = Controller::of::<Secret>("sharing")
        .owns_shared(kind::<ConfigMap>())
        .build(&stage.cluster, every.only());
    let running = [stage.run(&owning), stage.run(&sharing)];
    for name in ["before", "after", "shared"] {
        only.reach(name, 1).await;
        every.reach(name, 1).await;
    }
    let shared = json!({"apiVersion": "v1", "kind": "Secret", "name": "shared", "uid": uids[2]});
    let first = json!([owner("v1", "Secret", "before", &uids[0]), shared]);
    client.create(&child(&fixture, "child", &first)).await.unwrap();
    only.reach("before", 2).await;
    every.reach("shared", 2).await;
    // It changes hands, under another version's name.
    let second = json!([owner("v1", "Secret", "after", &uids[1]), shared]);
    client.update(&child(&fixture, "child", &second)).await.unwrap();
    only.reach("before", 3).await;
    only.reach("after", 2).await;
    every.reach("shared", 3).await;
    delete::<ConfigMap>(&client, &key(&fixture, "child")).await;
    only.reach("after", 3).await;
    assert_eq!(only.count("shared"), 1, "it does not control the child");
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

#[steersman_testing::test]
async fn a_child_of_a_former_owner_does_not_enqueue_a_new_object_of_its_name(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for name in ["owner", "other"] {
        client.create(&secret(&fixture, name, &json!({}))).await.unwrap();
    }
    let (only, every) = (Calls::new(), Calls::new());
    let owning = Controller::of::<Secret>("owning")
        .owns::<ConfigMap>()
        .build(&stage.cluster, only.only());
    let sharing = Controller::of::<Secret>("sharing")
        .owns_shared(kind::<ConfigMap>())
        .build(&stage.cluster, every.only());
    let running = [stage.run(&owning), stage.run(&sharing)];
    for calls in [&only, &every] {
        calls.reach("owner", 1).await;
        calls.reach("other", 1).await;
    }
    // The former owner was deleted, and garbage collection has not deleted its children yet.
    let former = json!([owner(
        "v1",
        "Secret",
        "owner",
        "11111111-2222-3333-4444-555555555555"
    )]);
    client.create(&child(&fixture, "left", &former)).await.unwrap();
    let unknown = json!([owner(
        "v1",
        "Secret",
        "to-come",
        "66666666-2222-3333-4444-555555555555"
    )]);
    client.create(&child(&fixture, "early", &unknown)).await.unwrap();
    let present = json!([owner(
        "v1",
        "Secret",
        "other",
        &uid(&client, &key(&fixture, "other")).await
    )]);
    client.create(&child(&fixture, "last", &present)).await.unwrap();
    for (calls, controller) in [(&only, &owning), (&every, &sharing)] {
        calls.reach("to-come", 1).await;
        calls.reach("other", 2).await;
        until(|| controller.depth() == Default::default()).await;
        assert_eq!(calls.count("owner"), 1);
    }
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

/// A map as a mapping needs it.
#[derive(serde::Deserialize)]
struct Addressed {
    #[serde(default)]
    data: std::collections::BTreeMap<String, String>,
}

#[steersman_testing::test]
async fn a_kind_can_be_watched_as_a_projection_of_it(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&config_map(&fixture, "map", "first"))
        .await
        .unwrap();
    let (primary, mapped) = (Calls::new(), Calls::new());
    let loud = object_is(|map: &Addressed| map.data.get("value").is_some_and(|value| value != "silent"));
    let of_projection = Controller::of_kind("primary", projection::<ConfigMap, Addressed>().when(loud))
        .build(&stage.cluster, primary.only());
    let to = fixture.namespace().to_owned();
    let mapping = map_fn(move |map: &Addressed| {
        let value = map.data.get("value").cloned();
        value.map(|value| ObjectKey::new(&to, &value))
    });
    let with_mapping = Controller::<ObjectKey>::named("mapped")
        .watches(projection::<ConfigMap, Addressed>(), mapping)
        .build(&stage.cluster, mapped.only());
    let running = [stage.run(&of_projection)];
    let mapping = stage.run(&with_mapping);
    primary.reach("map", 1).await;
    mapped.reach("first", 1).await;
    client
        .update(&config_map(&fixture, "map", "second"))
        .await
        .unwrap();
    primary.reach("map", 2).await;
    mapped.reach("first", 2).await;
    mapped.reach("second", 1).await;
    client
        .create(&config_map(&fixture, "quiet", "silent"))
        .await
        .unwrap();
    mapped.reach("silent", 1).await;
    delete::<ConfigMap>(&client, &key(&fixture, "map")).await;
    primary.reach("map", 3).await;
    mapped.reach("second", 2).await;
    assert_eq!(primary.count("quiet"), 0);
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
    mapping.stop(GRACE).await.unwrap();
}

// R160
#[steersman_testing::test]
async fn a_change_that_a_predicate_panics_over_passes_and_is_counted(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let fragile = Predicate::<ConfigMap>::new(|event: &ObjectEvent<'_, ConfigMap>| {
        assert!(event.object().name() != "strange", "out of order");
        event.object().name() == "wanted"
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .when(fragile)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    for name in ["strange", "other", "wanted"] {
        let map = config_map(&fixture, name, "1");
        stage.live().create(&map).await.unwrap();
    }
    calls.reach("strange", 1).await;
    calls.reach("wanted", 1).await;
    assert_eq!(calls.count("other"), 0);
    let [informer] = stage.cluster.cache().informers().try_into().unwrap();
    assert_eq!(informer.stats().panicked_handlers, [("maps".to_owned(), 1)]);
    running.stop(GRACE).await.unwrap();
}

// R58
#[steersman_testing::test]
async fn an_owner_outside_of_namespaces_is_found_also_if_its_kind_is_known_by_name_only(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let calls = Calls::new();
    let only_ours = format!("metadata.name={}", fixture.namespace());
    let namespaces = dynamic(Resource::of::<Namespace>()).fields(only_ours);
    let controller = Controller::of_kind("namespaces", namespaces)
        .owns::<ConfigMap>()
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    calls.reach(fixture.namespace(), 1).await;
    let namespaces = stage.live().of(&Resource::of::<Namespace>());
    let own = namespaces
        .get_required(&ObjectKey::new("", fixture.namespace()))
        .await
        .unwrap();
    let uid = own.metadata.uid.clone().unwrap();
    let owners = json!([owner("v1", "Namespace", fixture.namespace(), &uid)]);
    client.create(&child(&fixture, "child", &owners)).await.unwrap();
    calls.reach(fixture.namespace(), 2).await;
    assert_eq!(calls.keys(), [fixture.namespace(), fixture.namespace()]);
    running.stop(GRACE).await.unwrap();
}

/// The map that a secret names by its label.
fn by_label(secret: &Secret) -> Option<ObjectKey> {
    let labels = secret.metadata.labels.as_ref()?;
    let namespace = secret.metadata.namespace.as_deref()?;
    Some(ObjectKey::new(namespace, labels.get("map")?))
}

// R150
#[steersman_testing::test]
async fn a_mapping_gets_the_last_state_of_an_object_whose_deletion_was_missed(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let (typed, header) = (Calls::new(), Calls::new());
    let unknown = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let one = {
        let unknown = Arc::clone(&unknown);
        let noting = Predicate::<Secret>::new(move |event: &ObjectEvent<'_, Secret>| {
            if let Event::Deleted {
                object,
                final_state_known: false,
            } = event.event()
            {
                unknown.lock().unwrap().insert(object.name().to_owned());
            }
            true
        });
        Controller::named("typed")
            .watches(kind::<Secret>().when(noting), map_fn(by_label))
            .build(&stage.cluster, typed.only::<Request>())
    };
    let by_header = map_metadata(|object: &steersman_cache::Object| {
        let map = object.label("map")?.into_owned();
        Some(ObjectKey::new(object.namespace(), &map))
    });
    let other = Controller::named("header")
        .watches(metadata::<Secret>(), by_header)
        .build(&stage.cluster, header.only::<Request>());
    let running = [stage.run(&one), stage.run(&other)];
    let direct = support::cluster_builder(&fixture, "direct")
        .build()
        .await
        .unwrap();
    let client = direct.live();
    client
        .create(&secret(&fixture, "s", &json!({"map": "first"})))
        .await
        .unwrap();
    typed.reach("first", 1).await;
    client
        .update(&secret(&fixture, "s", &json!({"map": "second"})))
        .await
        .unwrap();
    for calls in [&typed, &header] {
        calls.reach("first", 2).await;
        calls.reach("second", 1).await;
    }

    // No watch sees the deletion, and the history is compacted.
    let expired = {
        let unplugged = proxy.unplug();
        delete::<Secret>(&client, &key(&fixture, "s")).await;
        let expired = proxy.inject(
            Matching::watches().path("/secrets").first(1),
            Fault::error_event(410),
        );
        drop(unplugged);
        expired
    };
    typed.reach("second", 2).await;
    header.reach("second", 2).await;
    assert_eq!(expired.hits(), 1);
    assert_eq!(*unknown.lock().unwrap(), BTreeSet::from(["s".to_owned()]));
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
}

// R123, D29
#[steersman_testing::test]
async fn an_object_that_was_created_and_deleted_unseen_wakes_its_controller(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let calls = Calls::new();
    let controller = Controller::named("typed")
        .watches(kind::<Secret>(), map_fn(by_label))
        .build(&stage.cluster, calls.only::<Request>());
    let running = stage.run(&controller);
    let direct = support::cluster_builder(&fixture, "direct")
        .build()
        .await
        .unwrap();
    let client = direct.live();
    client
        .create(&secret(&fixture, "before", &json!({"map": "first"})))
        .await
        .unwrap();
    calls.reach("first", 1).await;

    // The watch is away while this replica creates an object and another client deletes it.
    let watches = || Matching::watches().path("/secrets");
    let away = proxy.inject(watches(), Fault::answer(503));
    proxy.cut(&watches(), Cut::Clean);
    away.hit().await;
    let created = secret(&fixture, "unseen", &json!({"map": "second"}));
    stage.cluster.client().create(&created).await.unwrap();
    delete::<Secret>(&client, &key(&fixture, "unseen")).await;
    // The next list does not contain it, and no watch reports it.
    let _expired = proxy.inject(watches().first(1), Fault::error_event(410));
    drop(away);
    calls.reach("second", 1).await;
    running.stop(GRACE).await.unwrap();
}

#[steersman_testing::test]
async fn a_predicate_is_for_its_own_watch_only(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let calls = Calls::new();
    let same = map_fn(|secret: &Secret| {
        let namespace = secret.metadata.namespace.as_deref()?;
        Some(ObjectKey::new(namespace, secret.metadata.name.as_deref()?))
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .when(object_is(|map: &ConfigMap| {
            map.data.as_ref().is_some_and(|data| data["value"] == "wanted")
        }))
        .watches(
            kind::<Secret>().when(labels_changed()).when(generation_changed()),
            same,
        )
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    client.create(&config_map(&fixture, "a", "no")).await.unwrap();
    client.create(&config_map(&fixture, "b", "wanted")).await.unwrap();
    calls.reach("b", 1).await;
    // It is not wanted any more, which matters.
    client.update(&config_map(&fixture, "b", "no")).await.unwrap();
    calls.reach("b", 2).await;
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    calls.reach("a", 1).await;
    let mut changed = secret(&fixture, "a", &json!({}));
    changed.string_data = Some([("x".to_owned(), "y".to_owned())].into());
    client.update(&changed).await.unwrap();
    client
        .update(&secret(&fixture, "a", &json!({"tier": "front"})))
        .await
        .unwrap();
    calls.reach("a", 2).await;
    client
        .create(&config_map(&fixture, "last", "wanted"))
        .await
        .unwrap();
    calls.reach("last", 1).await;
    assert_eq!(calls.count("a"), 2);
    running.stop(GRACE).await.unwrap();
}

// R17
#[steersman_testing::test]
async fn a_controller_whose_informer_is_removed_uses_the_next(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let client = fixture_client(&fixture).await;
    for name in ["stays", "goes"] {
        client.create(&config_map(&fixture, name, "1")).await.unwrap();
    }
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    calls.reach("stays", 1).await;
    calls.reach("goes", 1).await;
    let stall = proxy.inject(Matching::any().path("/configmaps"), Fault::stall());
    stage.cluster.cache().remove(&Resource::of::<ConfigMap>());
    stall.hit().await;
    // No informer watches in between.
    delete::<ConfigMap>(&client, &key(&fixture, "goes")).await;
    client.create(&config_map(&fixture, "comes", "1")).await.unwrap();
    drop(stall);
    calls.reach("goes", 2).await;
    calls.reach("comes", 1).await;
    calls.reach("stays", 2).await;
    client.update(&config_map(&fixture, "stays", "2")).await.unwrap();
    calls.reach("stays", 3).await;
    running.stop(GRACE).await.unwrap();
}

async fn fixture_client(fixture: &Fixture) -> Client {
    let cluster = support::cluster_builder(fixture, "direct").build().await.unwrap();
    cluster.live()
}

#[steersman_testing::test]
async fn keys_sent_before_or_between_runs_wait_in_the_channel(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let (sender, receiver) = channel::<ObjectKey>("outside", 2);
    let controller = Controller::<ObjectKey>::named("keys")
        .source(receiver)
        .build(&stage.cluster, calls.only());
    sender.send(ObjectKey::new("", "early")).await.unwrap();
    let running = stage.run(&controller);
    calls.reach("early", 1).await;
    sender.send(ObjectKey::new("", "during")).await.unwrap();
    calls.reach("during", 1).await;
    running.stop(GRACE).await.unwrap();
    for name in ["b1", "b2"] {
        sender.send(ObjectKey::new("", name)).await.unwrap();
    }
    let full = sender.send(ObjectKey::new("", "b3"));
    assert!(full.now_or_never().is_none(), "it waits for room");
    let running = stage.run(&controller);
    calls.reach("b1", 1).await;
    calls.reach("b2", 1).await;
    running.stop(GRACE).await.unwrap();
    drop(controller);
    // The tasks of the run end soon.
    let back = loop {
        match sender.send(ObjectKey::new("", "late")).now_or_never() {
            Some(Err(key)) => break key,
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!(back.name(), "late");
}

#[steersman_testing::test]
async fn each_run_creates_a_new_stream(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let calls = Calls::new();
    let source = stream("numbers", || {
        let keys = ["x", "y"].map(|name| ObjectKey::new("", name));
        futures::stream::iter(keys).chain(futures::stream::pending())
    });
    let controller = Controller::<ObjectKey>::named("keys")
        .source(source)
        .build(&stage.cluster, calls.only());
    for run in 1..=3 {
        let running = stage.run(&controller);
        calls.reach("x", run).await;
        calls.reach("y", run).await;
        running.stop(GRACE).await.unwrap();
    }
}

#[steersman_testing::test]
async fn a_timer_fires_at_once_and_then_at_its_interval(fixture: Fixture) {
    let (clock, stage) = Stage::timed(&fixture).await;
    let calls = Calls::new();
    let controller = Controller::<ObjectKey>::named("keys")
        .source(every(Duration::from_secs(60), || [ObjectKey::new("", "report")]))
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    for time in 1..=3 {
        calls.reach("report", time).await;
        sleeps(&clock, &controller, 60 * time as u64).await;
        clock.advance(Duration::from_nanos(59_999_999_999));
        let_go_on().await;
        assert_eq!(calls.count("report"), time);
        clock.advance(Duration::from_nanos(1));
    }
    // Missed ticks are not made up for.
    calls.reach("report", 4).await;
    sleeps(&clock, &controller, 240).await;
    clock.advance(Duration::from_secs(6000));
    calls.reach("report", 5).await;
    sleeps(&clock, &controller, 180 + 6000 + 60).await;
    assert_eq!(calls.count("report"), 5);
    running.stop(GRACE).await.unwrap();
}

/// Waits until the timer waits for its next time, and nothing else does for anything before that.
async fn sleeps(clock: &TestClock, controller: &Controller<ObjectKey>, next: u64) {
    let next = MonotonicTime::ORIGIN + Duration::from_secs(next);
    until(|| controller.depth().in_flight() == 0 && clock.next_deadline() == Some(next)).await;
    let_go_on().await;
}

// R97
#[steersman_testing::test]
async fn a_cached_read_uses_the_informers_that_are_watched(fixture: Fixture) {
    let proxy: FaultProxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let client = fixture_client(&fixture).await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let calls = Calls::new();
    let reconciler = {
        let seen = Arc::clone(&seen);
        calls.then(move |request: Request, cx, _| {
            let seen = Arc::clone(&seen);
            async move {
                let found = cx.client().get::<Secret>(request.key()).await?;
                seen.lock()
                    .unwrap()
                    .push((request.name().to_owned(), found.is_some()));
                Ok(steersman_core::Action::await_change())
            }
        })
    };
    let controller = Controller::of::<Secret>("front")
        .namespace(fixture.namespace())
        .labels("tier=front")
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    for number in 0..20 {
        let name = format!("s-{number}");
        client
            .create(&secret(&fixture, &name, &json!({"tier": "front"})))
            .await
            .unwrap();
        calls.reach(&name, 1).await;
    }
    // It is not in the part any more.
    client
        .update(&secret(&fixture, "s-0", &json!({"tier": "back"})))
        .await
        .unwrap();
    calls.reach("s-0", 2).await;
    running.stop(GRACE).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().filter(|(_, found)| *found).count(), 20, "{seen:?}");
    assert_eq!(*seen.last().unwrap(), ("s-0".to_owned(), false));
    let all = proxy.exchanges();
    let watches: BTreeSet<_> = all
        .iter()
        .filter(|one| one.is_watch())
        .map(|one| &one.path)
        .collect();
    assert_eq!(watches.len(), 1, "{watches:?}");
    assert!(all.iter().all(|one| one.query.contains("tier%3Dfront")));
}
