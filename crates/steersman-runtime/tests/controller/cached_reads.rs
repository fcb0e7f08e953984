// SPDX-License-Identifier: Apache-2.0
//! Cached reads of a reconcile, and the informers that serve them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret, ServiceAccount},
};
use serde_json::json;
use steersman_cache::{Query, Resource, Scope};
use steersman_cluster::{Client, Fence};
use steersman_core::{Action, Clock, ObjectKey, TestClock, error_chain};
use steersman_runtime::{
    BoxError, Context, Controller, Reconciler, Request, Runnable, kind, map_fn, metadata, reconcile_fn,
    testing::LeadershipKeeper,
};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};
use support::{GRACE, Stage, config_map, key, until};
use tokio::sync::watch;

/// A Secret with a label and a value.
fn secret(fixture: &Fixture, name: &str, app: &str, value: &str) -> Secret {
    let mut secret: Secret = support::secret(fixture, name, &json!({"app": app}));
    let value = ByteString(value.as_bytes().to_vec());
    secret.data = Some([("value".to_owned(), value)].into());
    secret
}

fn value(secret: &Secret) -> String {
    let value = secret.data.as_ref().and_then(|data| data.get("value"));
    String::from_utf8(value.unwrap().0.clone()).unwrap()
}

/// Results of the reads of each reconcile.
#[derive(Clone)]
struct Seen(Arc<watch::Sender<Vec<String>>>);

impl Seen {
    fn new() -> Self {
        Self(Arc::default())
    }

    async fn saw(&self, what: &str) {
        let mut seen = self.0.subscribe();
        let saw = seen.wait_for(|seen| seen.iter().any(|seen| seen == what));
        saw.await.unwrap();
    }

    /// A reconciler that reads with `read`.
    fn by<F, Fut>(&self, read: F) -> impl Reconciler + use<F, Fut>
    where
        F: Fn(Client) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let seen = self.clone();
        reconcile_fn(move |_: Request, cx: Context| {
            let (seen, reading) = (seen.clone(), read(cx.client().clone()));
            async move {
                let read = reading.await?;
                seen.0.send_modify(|seen| seen.push(read));
                Ok::<_, BoxError>(Action::await_change())
            }
        })
    }
}

/// Every Secret is about the ConfigMap `map`.
fn about_the_map(fixture: &Fixture) -> impl steersman_runtime::Handler<Secret, Request> + use<> {
    let map = key(fixture, "map");
    map_fn(move |_: &Secret| Some(map.clone()))
}

/// How many informers of Secrets there are.
fn informers(stage: &Stage) -> usize {
    let secrets = Resource::of::<Secret>();
    let informers = stage.cluster.cache().informers();
    informers
        .iter()
        .filter(|informer| *informer.resource() == secrets)
        .count()
}

// D20
#[steersman_testing::test]
async fn guarantee_1_a_read_waits_for_no_other_watch_than_the_one_that_triggers(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    client
        .create(&secret(&fixture, "secret", "web", "first"))
        .await
        .unwrap();
    // The cache is set up for the namespace, and the controller watches by label.
    let path = format!("/namespaces/{}/secrets", fixture.namespace());
    let stalled = proxy.inject(Matching::watches().path(path.as_str()), Fault::stall());
    let also_stalled = proxy.inject(Matching::reads().path(path), Fault::stall());
    let (seen, secret_key) = (Seen::new(), key(&fixture, "secret"));
    let reader = seen.by(move |client| {
        let key = secret_key.clone();
        async move {
            let found = client.get::<Secret>(&key).await?;
            Ok(found.map_or_else(|| "none".to_owned(), |secret| value(&secret)))
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .watches(kind::<Secret>().labels("app=web"), about_the_map(&fixture))
        .build(&stage.cluster, reader);
    let running = stage.run(&controller);
    seen.saw("first").await;
    let changed = secret(&fixture, "secret", "web", "second");
    client.force().apply(&changed).await.unwrap();
    seen.saw("second").await;
    support::delete::<Secret>(&client.unfenced(), &key(&fixture, "secret")).await;
    seen.saw("none").await;
    assert_eq!(
        (informers(&stage), stalled.hits(), also_stalled.hits()),
        (1, 0, 0)
    );
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn guarantee_1_a_read_sees_the_objects_of_every_scope_that_is_watched(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    for (name, app) in [("a", "one"), ("b", "two"), ("c", "three")] {
        client.create(&secret(&fixture, name, app, "1")).await.unwrap();
    }
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    let (seen, here) = (Seen::new(), fixture.namespace().to_owned());
    let reader = seen.by(move |client| {
        let (here, third) = (here.clone(), ObjectKey::new(&here, "c"));
        async move {
            let secrets = client.list::<Secret>(&Query::new().namespace(&here)).await?;
            let mut names: Vec<_> = secrets
                .iter()
                .filter_map(|one| one.metadata.name.clone())
                .collect();
            names.sort();
            let third = client.get::<Secret>(&third).await?;
            Ok(format!("{}, c: {}", names.join(" "), third.is_some()))
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .owns_with(kind::<Secret>().labels("app=one"))
        .watches(kind::<Secret>().labels("app=two"), about_the_map(&fixture))
        .build(&stage.cluster, reader);
    let running = stage.run(&controller);
    seen.saw("a b, c: false").await;
    assert_eq!(informers(&stage), 2);
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn reads_outside_of_the_scope_are_an_explicit_choice(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client
        .create(&secret(&fixture, "other", "other", "1"))
        .await
        .unwrap();
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    let (seen, other) = (Seen::new(), key(&fixture, "other"));
    let reader = seen.by(move |client| {
        let (other, here) = (other.clone(), Scope::all().namespace(other.namespace()));
        async move {
            let watched = client.get::<Secret>(&other).await?.is_some();
            let wider = client
                .in_scope::<Secret>(&here)
                .get::<Secret>(&other)
                .await?
                .is_some();
            let live = client.live().get::<Secret>(&other).await?.is_some();
            let elsewhere = client.get::<Secret>(&ObjectKey::new("elsewhere", "a")).await;
            let elsewhere = elsewhere.unwrap_err().to_string();
            Ok(format!(
                "{watched} {wider} {live} {}",
                elsewhere.contains("elsewhere")
            ))
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .owns_with(kind::<Secret>().namespace(fixture.namespace()).labels("app=web"))
        .build(&stage.cluster, reader);
    let running = stage.run(&controller);
    seen.saw("false true true true").await;
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn a_declared_kind_is_in_sync_before_the_first_reconcile_and_enqueues_nothing(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    let stalls = [Matching::watches(), Matching::reads()];
    let stalled = stalls.map(|matching| proxy.inject(matching.path("/secrets"), Fault::stall()));
    let seen = Seen::new();
    let reader = seen.by(|_| async { Ok("reconciled".to_owned()) });
    let controller = Controller::of::<ConfigMap>("maps")
        .reads(kind::<Secret>())
        .warm()
        .build(&stage.cluster, reader);
    assert_eq!(controller.caches().len(), 2);
    let (keeper, leadership) = LeadershipKeeper::new();
    keeper.grant(Fence::open());
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    stage.stands("maps", |is| is.contains("secrets")).await;
    assert!(seen.0.borrow().is_empty());
    drop(stalled);
    seen.saw("reconciled").await;
    client
        .create(&secret(&fixture, "secret", "web", "1"))
        .await
        .unwrap();
    let held = stage.cluster.cache().informer(&Resource::of::<Secret>());
    until(|| held.store().get(fixture.namespace(), "secret").is_some()).await;
    assert_eq!(seen.0.borrow().len(), 1);
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn guarantee_2_a_run_keeps_its_informers_when_it_loses_leadership(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    stage
        .live()
        .create(&config_map(&fixture, "map", "1"))
        .await
        .unwrap();
    let (seen, none) = (Seen::new(), key(&fixture, "none"));
    let reader = seen.by(move |client| {
        let none = none.clone();
        async move { Ok(client.get::<Secret>(&none).await?.is_some().to_string()) }
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reader);
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    keeper.grant(Fence::open());
    seen.saw("false").await;
    keeper.revoke();
    keeper.vacated().await;
    stage.stands("maps", |is| is == "ready").await;
    assert_eq!(informers(&stage), 1);
    running.stop(GRACE).await.unwrap();
    until(|| informers(&stage) == 0).await;
}

#[steersman_testing::test]
async fn a_cached_read_of_whole_objects_of_a_metadata_only_kind_is_an_error(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    client
        .create(&secret(&fixture, "secret", "web", "1"))
        .await
        .unwrap();
    let (seen, namespace) = (Seen::new(), fixture.namespace().to_owned());
    let reader = seen.by(move |client: Client| {
        let query = Query::new().namespace(&namespace);
        async move {
            let metadata = client.metadata::<Secret>().list(&query).await?.len();
            let live = client.live().list::<Secret>(&query).await?.len();
            let error = client.list::<Secret>(&query).await.unwrap_err();
            Ok(format!("{metadata} {live} {}", error_chain(&error)))
        }
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .owns_with(metadata::<Secret>())
        .build(&stage.cluster, reader);
    let running = stage.run(&controller);
    let mut all = seen.0.subscribe();
    let read = all.wait_for(|all| !all.is_empty()).await.unwrap()[0].clone();
    assert!(
        read.starts_with("1 1 ") && read.contains("`Client::metadata`"),
        "{read}"
    );
    let informers = stage.cluster.cache().informers();
    let secrets = informers
        .iter()
        .find(|one| *one.resource() == Resource::of::<Secret>());
    let stored = secrets
        .unwrap()
        .store()
        .get(fixture.namespace(), "secret")
        .unwrap();
    assert!(stored.is_metadata_only(), "the informer is not widened");
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn guarantee_2_an_informer_that_a_read_has_opened_outlasts_the_term(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    stage
        .live()
        .create(&config_map(&fixture, "map", "1"))
        .await
        .unwrap();
    let (seen, none) = (Seen::new(), key(&fixture, "none"));
    let reader = seen.by(move |client| {
        let none = none.clone();
        async move { Ok(client.get::<Secret>(&none).await?.is_some().to_string()) }
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reader);
    let (keeper, leadership) = LeadershipKeeper::new();
    let running = controller.clone().spawn(&stage.context_led("maps", leadership));
    for _ in 0..3 {
        let before = seen.0.borrow().len();
        keeper.grant(Fence::open());
        until(|| seen.0.borrow().len() > before).await;
        keeper.revoke();
        keeper.vacated().await;
    }
    let exchanges = proxy.exchanges();
    let of_secrets = exchanges.iter().filter(|one| one.path.ends_with("/secrets"));
    let lists = of_secrets.filter(|one| !one.is_watch() || one.query.contains("sendInitialEvents=true"));
    assert_eq!(lists.count(), 1);
    running.stop(GRACE).await.unwrap();
}

// D20
#[steersman_testing::test]
async fn guarantee_3_an_undeclared_kind_that_cannot_be_read_degrades_the_controller(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let stage = Stage::through(&fixture, &proxy).await;
    stage
        .live()
        .create(&config_map(&fixture, "map", "1"))
        .await
        .unwrap();
    let forbidden = proxy.inject(Matching::any().path("/secrets"), Fault::answer(403));
    let none = key(&fixture, "none");
    let reader = Seen::new().by(move |client| {
        let none = none.clone();
        async move { Ok(client.get::<Secret>(&none).await?.is_some().to_string()) }
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reader);
    let running = stage.run(&controller);
    let is = stage.stands("maps", |is| is.contains("secrets")).await;
    assert!(is.contains("forbidden"), "{is}");
    drop(forbidden);
    stage.stands("maps", |is| is == "ready").await;
    running.stop(GRACE).await.unwrap();
}

// D30
#[steersman_testing::test]
async fn guarantee_5_a_key_that_failed_for_want_of_a_cache_is_retried_when_it_is_in_sync(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let builder = support::cluster_through(&fixture, &proxy, "default");
    let stage = Stage::of(builder, Arc::new(clock.clone())).await;
    stage
        .live()
        .create(&config_map(&fixture, "map", "1"))
        .await
        .unwrap();
    let broken = proxy.inject(Matching::any().path("/secrets"), Fault::answer(503));
    let (seen, none) = (Seen::new(), key(&fixture, "none"));
    let reader = seen.by(move |client| {
        let none = none.clone();
        async move { Ok(client.get::<Secret>(&none).await?.is_some().to_string()) }
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reader);
    let running = stage.run(&controller);
    stage.stands("maps", |is| is.contains("secrets")).await;
    // Until its back-off is longer than the test looks.
    let request = Request::new("default".into(), key(&fixture, "map"));
    until(|| {
        clock.advance(Duration::from_secs(1));
        let status = controller.status(&request);
        status.is_some_and(|status| status.failures() >= 16)
    })
    .await;
    drop(broken);
    let healed = clock.now();
    while seen.0.borrow().is_empty() {
        // An attempt that was under way fails once more. For a slow machine, time stands still after that. The back-off of the key is more than two minutes.
        if clock.now().saturating_since(healed) < Duration::from_secs(8) {
            clock.advance(Duration::from_millis(250));
        }
        _ = tokio::time::timeout(Duration::from_millis(100), seen.saw("false")).await;
    }
    running.stop(GRACE).await.unwrap();
}

// D30
#[steersman_testing::test]
async fn guarantee_5_the_recovery_of_another_kind_does_not_retry_a_key(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let builder = support::cluster_through(&fixture, &proxy, "default");
    let stage = Stage::of(builder, Arc::new(clock.clone())).await;
    for name in ["accounts", "secrets"] {
        let map = config_map(&fixture, name, "1");
        stage.live().create(&map).await.unwrap();
    }
    let answer = |path| proxy.inject(Matching::any().path(path), Fault::answer(503));
    let (_secrets, accounts) = (answer("/secrets"), answer("/serviceaccounts"));
    let seen = Seen::new();
    let sink = seen.clone();
    let reader = reconcile_fn(move |request: Request, cx: Context| {
        let sink = sink.clone();
        async move {
            match request.key().name() {
                "secrets" => _ = cx.client().get::<Secret>(request.key()).await?,
                _ => _ = cx.client().get::<ServiceAccount>(request.key()).await?,
            }
            sink.0
                .send_modify(|seen| seen.push(request.key().name().to_owned()));
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    let controller = Controller::of::<ConfigMap>("maps").build(&stage.cluster, reader);
    let running = stage.run(&controller);
    let status = |name: &str| controller.status(&Request::new("default".into(), key(&fixture, name)));
    let failures = |name: &str| status(name).map_or(0, |status| status.failures());
    // Not before the list has come: for a slow server, time would run too fast.
    until(|| status("secrets").is_some() && status("accounts").is_some()).await;
    // Until their back-off is longer than the test looks.
    until(|| {
        clock.advance(Duration::from_secs(1));
        failures("secrets") >= 16 && failures("accounts") >= 16
    })
    .await;
    let before = failures("secrets");
    drop(accounts);
    while seen.0.borrow().is_empty() {
        clock.advance(Duration::from_millis(250));
        _ = tokio::time::timeout(Duration::from_millis(100), seen.saw("accounts")).await;
    }
    let secrets = status("secrets").unwrap();
    assert!(
        matches!(secrets.stage(), steersman_queue::Stage::Delayed { .. }),
        "{secrets:?}"
    );
    assert_eq!(secrets.failures(), before);
    running.stop(GRACE).await.unwrap();
}
