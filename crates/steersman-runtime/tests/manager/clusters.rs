// SPDX-License-Identifier: Apache-2.0
//! The clusters of a manager: how they stand is seen from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{managed, support};
use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cache::Resource;
use steersman_cluster::{ClusterName, ClusterState};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{
    BoxError, Context, Controller, Manager, Request, RunContext, RunPolicy, Runnable, RunnableStatus,
    reconcile_fn,
};
use steersman_testing::{
    FaultProxy, Fixture,
    proxy::{Fault, Matching},
};
use tokio::sync::Notify;

use managed::{Steps, cluster_builder, cluster_through, key, run};
use support::{HERE, get};

async fn readyz(manager: &Manager) -> (u16, String) {
    let reply = get(manager.addresses().health.unwrap(), "/readyz?verbose").await;
    (reply.status, reply.body)
}

/// The states that metrics say a cluster is in. They say of all others that it is not.
async fn states(manager: &Manager, cluster: &str) -> Vec<String> {
    let metrics = get(manager.addresses().metrics.unwrap(), "/metrics").await.body;
    let beginning = format!(r#"steersman_cluster_state{{cluster="{cluster}",state=""#);
    let series = metrics.lines().filter_map(|line| line.strip_prefix(&beginning));
    let series: Vec<(&str, f64)> = series
        .filter_map(|line| line.split_once("\"} "))
        .map(|(state, value)| (state, value.parse().unwrap()))
        .collect();
    assert!(series.is_empty() || series.len() == ClusterState::NAMES.len());
    let inside = series.iter().filter(|(_, value)| *value != 0.0);
    inside.map(|(state, _)| (*state).to_owned()).collect()
}

// R52, R65
#[steersman_testing::test]
async fn how_each_cluster_stands_is_in_metrics_and_readiness(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let far = cluster_through(&fixture, &proxy, "far").await;
    let manager = Manager::builder()
        .cluster(cluster_builder(&fixture, "near").build().await.unwrap())
        .cluster(far.clone())
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    assert_eq!(states(&manager, "far").await, ["connecting"]);
    assert!(readyz(&manager).await.1.contains("cluster far: connecting\n"));
    let near = manager.cluster().unwrap();
    let maps = [&near, &far].map(|cluster| cluster.cache().informer(&Resource::of::<ConfigMap>()));
    for cluster in [&near, &far] {
        cluster.state_when(ClusterState::is_ready).await;
        assert_eq!(states(&manager, cluster.name().as_str()).await, ["ready"]);
    }

    let unplugged = proxy.unplug();
    let degraded = far
        .state_when(|state| matches!(state, ClusterState::Degraded { .. }))
        .await;
    assert_eq!(states(&manager, "far").await, ["degraded"]);
    assert_eq!(states(&manager, "near").await, ["ready"]);
    // One out of reach does not take the others along: nothing that runs needs it.
    let (status, body) = readyz(&manager).await;
    assert_eq!(status, 200, "{body}");
    let ClusterState::Degraded { reason } = degraded else {
        panic!("it was waited for");
    };
    let first_words: String = reason.split(": ").next().unwrap().to_owned();
    assert!(
        body.contains(&format!("cluster far: degraded: {first_words}")),
        "{body}"
    );
    assert!(body.contains("cluster near: ready\n"), "{body}");
    assert_eq!(
        get(manager.addresses().health.unwrap(), "/readyz").await.parts(),
        (200, "ok")
    );
    drop(unplugged);
    far.state_when(ClusterState::is_ready).await;
    assert_eq!(states(&manager, "far").await, ["ready"]);
    drop(maps);
    running.stop().await.unwrap();
}

/// A manager with a controller in two clusters, each behind a proxy of its own. `near` is the default cluster.
async fn in_two_clusters(
    fixture: &Fixture,
    (near, far): (&FaultProxy, &FaultProxy),
    sync_timeout: Duration,
) -> Manager {
    let manager = Manager::builder()
        .cluster(cluster_through(fixture, near, "near").await)
        .cluster(cluster_through(fixture, far, "far").await)
        .cache_sync_timeout(Duration::ZERO)
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let reconciler = reconcile_fn(async |_: Request, _: Context| Ok::<_, BoxError>(Action::await_change()));
    Controller::of::<ConfigMap>("everywhere")
        .on_every_cluster()
        .sync_timeout(sync_timeout)
        .add_to(&manager, reconciler)
        .unwrap();
    manager
}

/// Waits until `/readyz?verbose` has this status, and gives what it says.
async fn readyz_is(manager: &Manager, status: u16) -> String {
    loop {
        let (now, body) = readyz(manager).await;
        if now == status {
            return body;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_partially_degraded(manager: &Manager, cluster: &str) {
    let partially_degraded =
        |standing: &RunnableStatus| matches!(standing, RunnableStatus::PartiallyDegraded { .. });
    managed::stands(manager, "everywhere", partially_degraded).await;
    let body = readyz_is(manager, 200).await;
    let lines = || body.lines();
    let in_cluster = format!("(cluster {cluster})");
    let is_named = |line: &str| {
        line.starts_with("runnable everywhere: partially degraded: ") && line.ends_with(&in_cluster)
    };
    assert!(lines().any(is_named), "{body}");
    let metrics = get(manager.addresses().metrics.unwrap(), "/metrics").await.body;
    let series = r#"steersman_runnable_state{name="everywhere",state="partially_degraded"} 1"#;
    assert!(metrics.contains(series), "{metrics}");
    assert_eq!(states(manager, cluster).await, ["degraded"]);
}

// R52, R65, D16
#[steersman_testing::test]
async fn an_unreachable_spoke_cluster_does_not_make_a_replica_unready(fixture: Fixture) {
    let (near, far) = (fixture.proxy().await, fixture.proxy().await);
    let manager = in_two_clusters(&fixture, (&near, &far), Duration::from_secs(120)).await;
    let running = run(&manager);
    let is_ready = |standing: &RunnableStatus| *standing == RunnableStatus::Ready;
    managed::stands(&manager, "everywhere", is_ready).await;
    readyz_is(&manager, 200).await;
    let unplugged = far.unplug();
    is_partially_degraded(&manager, "far").await;
    let default_away = near.unplug();
    let body = readyz_is(&manager, 500).await;
    assert!(
        body.contains("[-]runnables failed: everywhere: degraded: "),
        "{body}"
    );
    drop((unplugged, default_away));
    managed::stands(&manager, "everywhere", is_ready).await;
    readyz_is(&manager, 200).await;
    running.stop().await.unwrap();
}

// R65, D16
#[steersman_testing::test]
async fn a_spoke_cluster_holds_readiness_until_the_sync_timeout(fixture: Fixture) {
    let (near, far) = (fixture.proxy().await, fixture.proxy().await);
    let _unplugged = far.unplug();
    let manager = in_two_clusters(&fixture, (&near, &far), Duration::from_secs(120)).await;
    let running = run(&manager);
    let is_degraded = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Degraded { .. });
    managed::stands(&manager, "everywhere", is_degraded).await;
    let (status, body) = readyz(&manager).await;
    assert_eq!(status, 500, "{body}");
    running.stop().await.unwrap();

    let manager = in_two_clusters(&fixture, (&near, &far), Duration::from_millis(100)).await;
    let running = run(&manager);
    is_partially_degraded(&manager, "far").await;
    running.stop().await.unwrap();
}

// R65, D16
#[steersman_testing::test]
async fn an_unreachable_spoke_cluster_delays_a_conditional_controller_until_the_sync_timeout(
    fixture: Fixture,
) {
    for (away, sync_timeout, expected) in [
        ("far", Duration::from_secs(120), 500),
        ("far", Duration::from_millis(100), 200),
        ("near", Duration::from_millis(100), 500),
    ] {
        let proxy = fixture.proxy().await;
        let _unplugged = proxy.unplug();
        let mut builder = Manager::builder().cache_sync_timeout(sync_timeout).health(HERE);
        let mut place = None;
        for name in ["near", "far"] {
            let cluster = match name == away {
                true => cluster_through(&fixture, &proxy, name).await,
                false => cluster_builder(&fixture, name).build().await.unwrap(),
            };
            builder = builder.cluster(cluster.clone());
            place = place.or((name == away).then_some(cluster));
        }
        let manager = builder.build().await.unwrap();
        let reconciler =
            reconcile_fn(async |_: Request, _: Context| Ok::<_, BoxError>(Action::await_change()));
        Controller::of::<ConfigMap>("conditional")
            .on(&place.unwrap())
            .when_installed()
            .add_to(&manager, reconciler)
            .unwrap();
        let running = run(&manager);
        let is_known = |standing: &RunnableStatus| standing.to_string().contains("unreachable");
        managed::stands(&manager, "conditional", is_known).await;
        if expected == 200 {
            let partially_degraded =
                |standing: &RunnableStatus| matches!(standing, RunnableStatus::PartiallyDegraded { .. });
            managed::stands(&manager, "conditional", partially_degraded).await;
        } else if away == "near" {
            manager
                .statuses()
                .when_settled(|all| all.contains("conditional"))
                .await;
        }
        let (status, body) = readyz(&manager).await;
        assert_eq!(status, expected, "{away}: {body}");
        let is_named = |line: &str| {
            line.starts_with("runnable conditional: partially degraded: ") && line.ends_with("(cluster far)")
        };
        assert_eq!(body.lines().any(is_named), expected == 200, "{body}");
        running.stop().await.unwrap();
    }
}

// R174
#[steersman_testing::test]
async fn a_cluster_is_seen_to_drain_until_it_is_removed(fixture: Fixture) {
    let manager = Manager::builder()
        .cluster(cluster_builder(&fixture, "near").build().await.unwrap())
        .cluster(cluster_builder(&fixture, "far").build().await.unwrap())
        .health(HERE)
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let (steps, go_on) = (Steps::new(), Arc::new(Notify::new()));
    let reconciler = {
        let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
        reconcile_fn(move |_: Request, cx: Context| {
            let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
            async move {
                if cx.cluster().name().as_str() == "far" {
                    steps.add("begun");
                    go_on.notified().await;
                }
                Ok::<_, BoxError>(Action::await_change())
            }
        })
    };
    let controller = Controller::of::<ConfigMap>("everywhere")
        .on_every_cluster()
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    let is_ready = |standing: &RunnableStatus| *standing == RunnableStatus::Ready;
    let standings = manager.statuses();
    standings
        .when(|all| all.get("everywhere").is_some_and(is_ready))
        .await;
    let far = ClusterName::from("far");
    controller.enqueue(Request::new(far.clone(), key(&fixture, "a")));
    steps.saw("begun").await;
    assert!(!states(&manager, "far").await.contains(&"draining".to_owned()));

    let mut removed = Box::pin(manager.remove_cluster(&far, Duration::from_secs(60)));
    assert!(removed.as_mut().now_or_never().is_none());
    assert_eq!(states(&manager, "far").await, ["draining"]);
    let (status, body) = readyz(&manager).await;
    assert_eq!(status, 200, "{body}");
    for line in ["cluster far: draining\n", "runnable everywhere: ready\n"] {
        assert!(body.contains(line), "{body}");
    }
    go_on.notify_one();
    removed.await.unwrap();
    assert!(states(&manager, "far").await.is_empty());
    assert!(!readyz(&manager).await.1.contains("cluster far"));
    running.stop().await.unwrap();
}

/// Works on a cluster that it names, and reads from it once more after a stop request.
struct Reader {
    steps: Steps,
    go_on: Arc<Notify>,
    map: ObjectKey,
}

impl Runnable for Reader {
    fn name(&self) -> &str {
        "reader"
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    fn clusters(&self) -> Vec<ClusterName> {
        vec!["far".into()]
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let far = cx.cluster(&"far".into()).ok_or("it is named")?;
        cx.ready();
        self.steps.add("begun");
        cx.stop().requested().await;
        self.steps.add("told");
        self.go_on.notified().await;
        far.live().get::<ConfigMap>(&self.map).await?;
        self.steps.add("read");
        Ok(())
    }
}

// R174
#[steersman_testing::test]
async fn a_removed_cluster_is_open_until_runnables_that_name_it_have_ended(fixture: Fixture) {
    let far = cluster_builder(&fixture, "far").build().await.unwrap();
    let manager = Manager::builder().cluster(far.clone()).build().await.unwrap();
    let (steps, go_on) = (Steps::new(), Arc::new(Notify::new()));
    let reader = Reader {
        steps: steps.clone(),
        go_on: Arc::clone(&go_on),
        map: key(&fixture, "a"),
    };
    manager.add(reader).unwrap();
    let running = run(&manager);
    steps.saw("begun").await;
    let name = ClusterName::from("far");
    let mut removed = Box::pin(manager.remove_cluster(&name, Duration::from_secs(60)));
    assert!(removed.as_mut().now_or_never().is_none());
    steps.saw("told").await;
    assert!(removed.as_mut().now_or_never().is_none(), "it works on it");
    assert!(!far.is_closed());
    go_on.notify_one();
    removed.await.unwrap();
    assert_eq!(steps.all(), ["begun", "told", "read"]);
    assert!(far.is_closed());
    running.stop().await.unwrap();
}

// R174
#[steersman_testing::test]
async fn a_removed_cluster_is_open_for_reconciles_that_have_its_client(fixture: Fixture) {
    let far = cluster_builder(&fixture, "far").build().await.unwrap();
    let manager = Manager::builder()
        .cluster(cluster_builder(&fixture, "near").build().await.unwrap())
        .cluster(far.clone())
        .build()
        .await
        .unwrap();
    let (steps, go_on) = (Steps::new(), Arc::new(Notify::new()));
    let reconciler = {
        let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
        reconcile_fn(move |request: Request, cx: Context| {
            let (steps, go_on) = (steps.clone(), Arc::clone(&go_on));
            async move {
                let Some(client) = cx.client_of(&"far".into()) else {
                    steps.add("gone");
                    return Ok::<_, BoxError>(Action::await_change());
                };
                steps.add("begun");
                go_on.notified().await;
                client.live().get::<ConfigMap>(request.key()).await?;
                steps.add("read");
                Ok(Action::await_change())
            }
        })
    };
    let controller = Controller::<Request>::named("mirror")
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    let request = || Request::new("near".into(), key(&fixture, "a"));
    controller.enqueue(request());
    steps.saw("begun").await;
    let name = ClusterName::from("far");
    let mut removed = Box::pin(manager.remove_cluster(&name, Duration::from_secs(60)));
    assert!(removed.as_mut().now_or_never().is_none());
    assert!(!far.is_closed());
    go_on.notify_one();
    removed.await.unwrap();
    assert_eq!(steps.all(), ["begun", "read"]);
    controller.enqueue(request());
    steps.saw("gone").await;
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn no_metric_series_is_duplicated(fixture: Fixture) {
    // Both are on one host, and each keeps two parts of its maps.
    let near = cluster_builder(&fixture, "near").build().await.unwrap();
    let far = cluster_builder(&fixture, "far").build().await.unwrap();
    let manager = Manager::builder()
        .cluster(near.clone())
        .cluster(far.clone())
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    let maps = Resource::of::<ConfigMap>();
    let mut held = Vec::new();
    for cache in [near.cache(), far.cache()] {
        let part = cache.scope(&maps).labels("tier=front");
        held.extend([cache.informer(&maps), cache.informer_in(&maps, &part)]);
    }
    for informer in &held {
        informer.synced().await;
    }
    let metrics = get(manager.addresses().metrics.unwrap(), "/metrics").await.body;
    let mut series: Vec<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect();
    series.sort_unstable();
    let twice: Vec<_> = series.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
    running.stop().await.unwrap();
}

#[steersman_testing::test]
async fn requests_that_are_repeated_have_the_labels_of_client_go(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "far").await;
    let manager = Manager::builder()
        .cluster(cluster.clone())
        .metrics(|server| server.address(HERE))
        .build()
        .await
        .unwrap();
    let running = run(&manager);
    manager.elected().await;
    let _busy = proxy.inject(Matching::method("GET").first(2), Fault::answer(503));
    let read = cluster.live().get::<ConfigMap>(&key(&fixture, "a")).await;
    assert!(read.unwrap().is_none());
    let metrics = get(manager.addresses().metrics.unwrap(), "/metrics").await.body;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("rest_client_request_retries_total"));
    let host = &cluster.requests()[0].host;
    let expected = format!(r#"rest_client_request_retries_total{{code="503",host="{host}",verb="GET"}} 2.0"#);
    assert_eq!(line, Some(&*expected), "{metrics}");
    // C4: one request with two retries, and the buckets of client-go.
    let labels = format!(r#"host="{host}",verb="GET""#);
    for expected in [
        format!("rest_client_request_duration_seconds_count{{{labels}}}"),
        format!(r#"rest_client_request_duration_seconds_bucket{{{labels},le="0.005"}}"#),
        format!(r#"rest_client_request_duration_seconds_bucket{{{labels},le="60"}}"#),
        format!(r#"rest_client_request_size_bytes_bucket{{{labels},le="64"}}"#),
        format!(r#"rest_client_response_size_bytes_bucket{{{labels},le="1.6777216e+07"}}"#),
        format!(r#"rest_client_response_size_bytes_bucket{{{labels},le="+Inf"}}"#),
    ] {
        assert!(metrics.contains(&expected), "{expected} is not in {metrics}");
    }
    running.stop().await.unwrap();
}
