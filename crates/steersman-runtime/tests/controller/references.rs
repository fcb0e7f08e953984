// SPDX-License-Identifier: Apache-2.0
//! Objects that name others: by index, and found at run time by a tracker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret},
    rbac::v1::ClusterRole,
};
use kube::core::DynamicObject;
use serde_json::json;
use steersman_cache::{Resource, Scope};
use steersman_cluster::{Client, Cluster, ObjectExt};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{
    BoxError, Context, Controller, LOW_PRIORITY, ObjectReconciler, Request, Tracker, dynamic, kind, metadata,
    reconcile_fn,
};
use steersman_testing::{
    Fixture, eventually,
    proxy::{Cut, Fault, Matching},
};
use support::{Calls, GRACE, Stage, cluster_builder, config_map, delete, key, object, secret};

/// The names of the secrets in a map, separated by commas.
fn secrets_of(map: &ConfigMap) -> Vec<String> {
    let value = map.data.as_ref().and_then(|data| data.get("value"));
    let names = value.map(|value| value.split(',').map(str::to_owned).collect());
    names.unwrap_or_default()
}

/// Changes a secret, so that it has another version.
async fn touch(fixture: &Fixture, client: &Client, name: &str, value: &str) {
    let changed = secret(fixture, name, &json!({"value": value}));
    client.update(&changed).await.unwrap();
}

/// References by index on both servers: creation, change and deletion, of those that name it and of no others.
// R138, R72: guarantees 1 and 2
#[steersman_testing::test]
async fn guarantee_1_every_object_that_names_a_changed_one_is_reconciled_and_no_other(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for (name, secrets) in [("one", "a"), ("both", "a,b"), ("other", "b"), ("none", "")] {
        client.create(&config_map(&fixture, name, secrets)).await.unwrap();
    }
    let calls = Calls::new();
    let controller = Controller::of::<ConfigMap>("maps")
        .references::<Secret>(secrets_of)
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    for name in ["one", "both", "other", "none"] {
        calls.reach(name, 1).await;
    }
    // It does not exist yet.
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    calls.reach("one", 2).await;
    calls.reach("both", 2).await;
    touch(&fixture, &client, "a", "1").await;
    calls.reach("one", 3).await;
    calls.reach("both", 3).await;
    delete::<Secret>(&client, &key(&fixture, "a")).await;
    calls.reach("one", 4).await;
    calls.reach("both", 4).await;
    // A change of a reference takes effect with the change of the object.
    client.update(&config_map(&fixture, "one", "b")).await.unwrap();
    calls.reach("one", 5).await;
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    calls.reach("both", 5).await;
    // The secret `b` is dispatched after `a`, so all keys of `a` were enqueued before its keys are reconciled.
    client.create(&secret(&fixture, "b", &json!({}))).await.unwrap();
    calls.reach("one", 6).await;
    calls.reach("other", 2).await;
    calls.reach("both", 6).await;
    running.stop(GRACE).await.unwrap();
    let counts = ["one", "both", "other", "none"].map(|name| calls.count(name));
    assert_eq!(counts, [6, 6, 2, 1], "{:?}", calls.keys());
    let urgent = calls
        .all()
        .iter()
        .filter(|call| call.priority != LOW_PRIORITY)
        .count();
    assert_eq!(urgent, 11, "only the first lists have a low priority");
}

// R138: keys in other namespaces, and kinds without namespaces
#[steersman_testing::test]
async fn a_reference_can_be_in_another_namespace_or_in_none(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let other = format!("{}-other", fixture.namespace());
    let namespace: Namespace = object(json!({"metadata": {"name": other}}));
    client.create(&namespace).await.unwrap();
    let role_name = format!("role-of-{}", fixture.namespace());
    for (name, value) in [("one", "far"), ("two", role_name.as_str()), ("three", "unused")] {
        client.create(&config_map(&fixture, name, value)).await.unwrap();
    }
    let calls = Calls::new();
    let far = other.clone();
    let controller = Controller::of::<ConfigMap>("maps")
        .references_with(kind::<Secret>().namespace(&other), move |map: &ConfigMap| {
            let names = secrets_of(map).into_iter();
            names.map(|name| ObjectKey::new(&far, &name)).collect::<Vec<_>>()
        })
        .references::<ClusterRole>(|map| secrets_of(map).into_iter().next())
        .build(&stage.cluster, calls.only());
    let running = stage.run(&controller);
    for name in ["one", "two", "three"] {
        calls.reach(name, 1).await;
    }
    let mut far = secret(&fixture, "far", &json!({}));
    far.metadata.namespace = Some(other);
    client.create(&far).await.unwrap();
    calls.reach("one", 2).await;
    let role: ClusterRole = object(json!({"metadata": {"name": role_name}, "rules": []}));
    client.create(&role).await.unwrap();
    calls.reach("two", 2).await;
    delete::<ClusterRole>(&client, &ObjectKey::new("", &role_name)).await;
    calls.reach("two", 3).await;
    running.stop(GRACE).await.unwrap();
    assert_eq!(["one", "two", "three"].map(|name| calls.count(name)), [2, 3, 1]);
}

// R138: dynamic kinds on both sides, metadata and selectors
#[steersman_testing::test]
async fn references_work_with_dynamic_kinds_metadata_and_selectors(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "one", "a")).await.unwrap();
    client.create(&config_map(&fixture, "two", "b")).await.unwrap();
    let value_of = |map: &DynamicObject| map.data["data"]["value"].as_str().map(str::to_owned);
    let resource = |kind: &str, plural: &str| Resource::new("", "v1", kind, plural);
    let (by_dynamic, by_metadata) = (Calls::new(), Calls::new());
    let maps = || dynamic(resource("ConfigMap", "configmaps"));
    let all = Controller::of_kind("all", maps())
        .references_with(dynamic(resource("Secret", "secrets")), value_of)
        .build(&stage.cluster, by_dynamic.only());
    let shared = Controller::of_kind("shared", maps())
        .references_with(
            metadata::<Secret>()
                .namespace(fixture.namespace())
                .labels("shared=true"),
            value_of,
        )
        .build(&stage.cluster, by_metadata.only());
    let running = [stage.run(&all), stage.run(&shared)];
    for calls in [&by_dynamic, &by_metadata] {
        calls.reach("one", 1).await;
        calls.reach("two", 1).await;
    }
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    by_dynamic.reach("one", 2).await;
    let labelled = json!({"shared": "true"});
    client.create(&secret(&fixture, "b", &labelled)).await.unwrap();
    by_dynamic.reach("two", 2).await;
    by_metadata.reach("two", 2).await;
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
    assert_eq!((by_metadata.count("one"), by_dynamic.count("one")), (1, 2));
}

// R138: a related object that is deleted while the watch is cut
#[steersman_testing::test]
async fn a_referenced_object_that_is_deleted_while_the_watch_is_cut_reconciles_its_referrer(
    fixture: Fixture,
) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    client.create(&config_map(&fixture, "one", "a")).await.unwrap();
    let found = Arc::new(tokio::sync::watch::Sender::new(Vec::new()));
    let seen = Arc::clone(&found);
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let seen = Arc::clone(&seen);
        async move {
            let secret = ObjectKey::new(request.namespace(), "a");
            let secret = cx.client().get::<Secret>(&secret).await?;
            seen.send_modify(|seen| seen.push(secret.is_some()));
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .references::<Secret>(secrets_of)
        .build(&stage.cluster, reconciler);
    let running = stage.run(&controller);
    stage.stands("maps", |is| is == "ready").await;
    let mut seen = found.subscribe();
    seen.wait_for(|seen| seen.contains(&true)).await.unwrap();
    // No list and no watch of secrets, until the secret is deleted. The history that has the deletion is gone then.
    let watches = || Matching::watches().path("/secrets");
    let refused = proxy.inject(watches(), Fault::answer(503));
    proxy.cut(&watches(), Cut::Clean);
    refused.hit().await;
    delete::<Secret>(&client, &key(&fixture, "a")).await;
    let _expired = proxy.inject(watches().first(1), Fault::error_event(410));
    drop(refused);
    seen.wait_for(|seen| seen.last() == Some(&false)).await.unwrap();
    // Reads use the informer that triggers the reconcile: there is one watch of the kind.
    let exchanges = proxy.exchanges();
    let open = exchanges.iter().filter(|one| one.is_watch() && one.is_open());
    assert!(open.filter(|one| one.path.contains("/secrets")).count() <= 1);
    running.stop(GRACE).await.unwrap();
}

/// Remembers keys with their cluster.
fn by_cluster(calls: &Calls) -> impl steersman_runtime::Reconciler {
    let calls = calls.clone();
    reconcile_fn(move |request: Request, cx: Context| {
        calls.add(&format!("{}:{}", request.cluster(), request.name()), &cx);
        std::future::ready(Ok::<_, BoxError>(Action::await_change()))
    })
}

/// A second cluster: another namespace of the same server.
async fn away(fixture: &Fixture, client: &Client) -> (String, Cluster) {
    let name = format!("{}-away", fixture.namespace());
    let namespace: Namespace = object(json!({"metadata": {"name": name}}));
    client.create(&namespace).await.unwrap();
    let here = Scope::all().namespace(&name);
    let cluster = cluster_builder(fixture, "away").cache(|cache| cache.defaults(here, Default::default()));
    (name, cluster.build().await.unwrap())
}

// R72, R138
#[steersman_testing::test]
async fn references_are_to_the_same_cluster_or_to_the_one_that_the_kind_names(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    let (other, away) = away(&fixture, &client).await;
    stage.runtime.clusters().insert(away.clone()).unwrap();
    let in_away = |name: &str, value: &str| {
        let mut map = config_map(&fixture, name, value);
        map.metadata.namespace = Some(other.clone());
        map
    };
    client.create(&config_map(&fixture, "one", "a")).await.unwrap();
    client.create(&in_away("one", "a")).await.unwrap();
    let (same, named) = (Calls::new(), Calls::new());
    let beside = Controller::of::<ConfigMap>("beside")
        .on_every_cluster()
        .references::<Secret>(secrets_of)
        .build(&stage.cluster, by_cluster(&same));
    let home = fixture.namespace().to_owned();
    let shared = Controller::of::<ConfigMap>("shared")
        .on_every_cluster()
        .references_with(kind::<Secret>().on(&stage.cluster), move |map: &ConfigMap| {
            let names = secrets_of(map).into_iter();
            names.map(|name| ObjectKey::new(&home, &name)).collect::<Vec<_>>()
        })
        .build(&stage.cluster, by_cluster(&named));
    let running = [stage.run(&beside), stage.run(&shared)];
    for calls in [&same, &named] {
        calls.reach("default:one", 1).await;
        calls.reach("away:one", 1).await;
    }
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    same.reach("default:one", 2).await;
    named.reach("default:one", 2).await;
    named.reach("away:one", 2).await;
    let mut there = secret(&fixture, "a", &json!({}));
    there.metadata.namespace = Some(other.clone());
    client.create(&there).await.unwrap();
    same.reach("away:one", 2).await;
    for one in running {
        one.stop(GRACE).await.unwrap();
    }
    assert_eq!((same.count("default:one"), named.count("away:one")), (2, 2));
}

/// Tracks the secrets that it finds.
#[derive(Clone)]
struct Tracked {
    tracker: Tracker,
    calls: Calls,
}

impl ObjectReconciler<ConfigMap> for Tracked {
    type Error = BoxError;

    async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, BoxError> {
        let request = Request::new(cx.cluster().name().clone(), map.key());
        let mut tracking = self.tracker.begin(&request);
        for name in secrets_of(&map) {
            tracking.add::<Secret>(&ObjectKey::new(map.key().namespace(), &name));
        }
        tracking.finish();
        self.calls.add(&map.key(), &cx);
        Ok(Action::await_change())
    }
}

// R109, R138: guarantees of the tracker, in a reconciler without the kit
#[steersman_testing::test]
async fn a_reconciler_tracks_objects_that_it_finds_at_run_time(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for (name, secrets) in [("one", "a"), ("two", "b")] {
        client.create(&config_map(&fixture, name, secrets)).await.unwrap();
    }
    let reconciler = Tracked {
        tracker: Tracker::new(),
        calls: Calls::new(),
    };
    let controller = Controller::of::<ConfigMap>("maps")
        .tracks(kind::<Secret>(), &reconciler.tracker)
        .build(&stage.cluster, reconciler.clone());
    let running = stage.run(&controller);
    let calls = &reconciler.calls;
    calls.reach("one", 1).await;
    calls.reach("two", 1).await;
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    calls.reach("one", 2).await;
    delete::<Secret>(&client, &key(&fixture, "a")).await;
    calls.reach("one", 3).await;
    // It tracks another object from its next reconcile on.
    client.update(&config_map(&fixture, "one", "b")).await.unwrap();
    calls.reach("one", 4).await;
    client.create(&secret(&fixture, "a", &json!({}))).await.unwrap();
    client.create(&secret(&fixture, "b", &json!({}))).await.unwrap();
    calls.reach("one", 5).await;
    calls.reach("two", 2).await;
    assert_eq!((calls.count("one"), calls.count("two")), (5, 2));
    // A deleted object is forgotten.
    delete::<ConfigMap>(&client, &key(&fixture, "one")).await;
    delete::<ConfigMap>(&client, &key(&fixture, "two")).await;
    let is_empty = || !format!("{:?}", reconciler.tracker).contains("\"b\"");
    eventually("the tracker is empty", async || is_empty().then_some(())).await;
    running.stop(GRACE).await.unwrap();
}
