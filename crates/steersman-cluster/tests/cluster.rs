// SPDX-License-Identifier: Apache-2.0
//! The life of a cluster: how it stands, how it ends, and that it is alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{Api, WatchParams};
use steersman_cache::{Event, Query, Resource};
use steersman_cluster::{Cluster, ClusterState, ConnectError, ResourceQuery};
use steersman_core::{Clock, ObjectKey, Spawner, TestClock};
use steersman_testing::{
    Fixture,
    proxy::{Ended, Exchange, Fault, Matching},
};
use support::{builder, cluster, config_map, key, names};

// R46, R173
#[steersman_testing::test]
async fn parts_of_a_cluster_use_only_its_server(fixture: Fixture) {
    let (here, there) = (fixture.proxy().await, fixture.proxy().await);
    let (a, b) = (cluster(&fixture, &here).await, cluster(&fixture, &there).await);
    let client = b.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let query = Query::new().namespace(fixture.namespace());
    assert!(names(&client.list(&query).await.unwrap()).contains(&"a".to_owned()));
    let maps: Api<ConfigMap> = Api::namespaced(client.kube(), fixture.namespace());
    maps.get("a").await.unwrap();
    assert!(here.exchanges().is_empty());
    assert_eq!((a.requests().len(), a.state()), (0, ClusterState::Connecting));
    assert_eq!(b.state(), ClusterState::Ready);
}

#[steersman_testing::test]
async fn another_connection_is_independent(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let first = cluster(&fixture, &proxy).await;
    let other = first.another("other").build().await.unwrap();
    assert_eq!(other.user_agent(), first.user_agent());
    first
        .live()
        .create(&config_map(&fixture, "a", "first"))
        .await
        .unwrap();
    first.close("it is not needed any more");
    let found = other.live().get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    assert!(found.is_some());
    let all = proxy.exchanges();
    assert_ne!(all[0].connection, all[1].connection);
    assert_eq!((first.requests().len(), other.requests().len()), (1, 1));
}

// R135, D26
#[steersman_testing::test]
async fn all_clients_of_a_cluster_share_one_connection_pool(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let a = key(&fixture, "a");
    cluster
        .live()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    // A connection is idle again some time after its answer, so that a second one may be opened. With a pool for each client,
    // however often they ask, none would carry requests of all three.
    let (live, derived) = (cluster.live(), cluster.client().live());
    let raw: Api<ConfigMap> = Api::namespaced(live.kube(), fixture.namespace());
    let mut shared = BTreeMap::<u64, BTreeSet<&str>>::new();
    let is_shared = |shared: &BTreeMap<_, BTreeSet<_>>| shared.values().any(|clients| clients.len() == 3);
    for _ in 0..200 {
        if is_shared(&shared) {
            break;
        }
        let last = || proxy.exchanges().last().map_or(0, |one| one.connection);
        live.get::<ConfigMap>(&a).await.unwrap();
        shared.entry(last()).or_default().insert("live");
        derived.get::<ConfigMap>(&a).await.unwrap();
        shared.entry(last()).or_default().insert("derived");
        raw.get("a").await.unwrap();
        shared.entry(last()).or_default().insert("raw");
    }
    assert!(is_shared(&shared), "{shared:?}");

    // The cache has a separate pool, with one watch per connection.
    let before = proxy.exchanges().len();
    let kinds = [Resource::of::<ConfigMap>(), Resource::of::<Secret>()];
    let _informers = kinds.map(|kind| cluster.cache().informer(&kind));
    cluster.client().get::<ConfigMap>(&a).await.unwrap();
    cluster.client().get::<Secret>(&a).await.unwrap();
    let exchanges = proxy.exchanges();
    let of_cache: BTreeSet<u64> = exchanges[before..].iter().map(|one| one.connection).collect();
    assert!(of_cache.len() >= 2, "{of_cache:?}");
    assert!(shared.keys().all(|connection| !of_cache.contains(connection)));
}

/// The timers of connections that are open to this port, as the kernel numbers them.
#[cfg(target_os = "linux")]
fn timers(port: u16) -> Vec<String> {
    let (peer, open) = (format!(":{port:04X}"), "01");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[2].ends_with(&peer) && row[3] == open)
        .map(|row| row[5][..2].to_owned())
        .collect()
}

/// A dead peer is noticed on all connections, and not only on those of the cache.
#[cfg(target_os = "linux")]
#[steersman_testing::test]
async fn connections_have_keepalive(fixture: Fixture) {
    const KEEPALIVE: &str = "02";
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    client
        .get_required::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    let port = support::config(&fixture, &proxy).cluster_url.port_u16().unwrap();
    // Another timer fires first while a request is in flight.
    steersman_testing::eventually("a keepalive timer on each connection", async || {
        let timers = timers(port);
        let asks = timers.len() > 1 && timers.iter().all(|timer| timer == KEEPALIVE);
        asks.then_some(())
    })
    .await;
}

// R174
#[steersman_testing::test]
async fn guarantee_4_a_closed_cluster_rejects_requests(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    client
        .get_required::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    let options = WatchParams::default();
    let mut watch = client
        .watch::<ConfigMap>(fixture.namespace(), &options, "0")
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.kube(), fixture.namespace());
    let held = cluster.cache().informer(&Resource::of::<ConfigMap>());

    let stall = proxy.inject(Matching::method("POST"), Fault::stall());
    let other = config_map(&fixture, "b", "first");
    let (written, ()) = futures::join!(client.create(&other), async {
        stall.hit().await;
        cluster.close("the cluster was removed");
    });
    let error = written.unwrap_err();
    assert!(error.is_fenced(), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        source,
        "the write was aborted while under way, and might have been applied: the cluster was removed"
    );
    held.ended().await;
    let sent = proxy.exchanges().len();
    while let Some(event) = watch.next().await {
        if let Err(error) = event {
            assert!(error.is_fenced(), "{error:?}");
        }
    }
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap_err()
            .is_fenced()
    );
    assert!(
        client
            .live()
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap_err()
            .is_fenced()
    );
    assert!(client.unfenced().create(&other).await.unwrap_err().is_fenced());
    assert!(maps.get("a").await.is_err());
    assert_eq!(cluster.state(), ClusterState::Draining);
    proxy
        .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
        .await;
    assert_eq!(proxy.exchanges().len(), sent);
}

// R59
#[steersman_testing::test]
async fn guarantee_3_all_connections_close_with_the_last_handle(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let client = cluster.client();
    client
        .list::<ConfigMap>(&Query::new().namespace(fixture.namespace()))
        .await
        .unwrap();
    client
        .list::<Secret>(&Query::new().namespace(fixture.namespace()))
        .await
        .unwrap();
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    drop(cluster);
    assert!(
        proxy.exchanges().iter().any(|one| one.is_open()),
        "a client is a handle"
    );
    drop(client);
    let ended = proxy
        .wait_for(|all| all.iter().map(|one| one.ended).collect::<Option<Vec<_>>>())
        .await;
    assert_eq!(
        ended.iter().filter(|ended| **ended == Ended::ClientGone).count(),
        2
    );
    proxy.has_connections(0).await;
}

// R59
#[steersman_testing::test]
async fn guarantee_3_the_last_handle_can_be_dropped_on_the_cache_thread(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let informer = cluster.cache().informer(&Resource::of::<ConfigMap>());
    informer.synced().await;
    let (dropped, was_dropped) = tokio::sync::oneshot::channel();
    let mut last = Some((cluster.client(), dropped));
    let handler = std::sync::Mutex::new(move |_: &Event| {
        if let Some((client, dropped)) = last.take() {
            drop(client);
            let thread = std::thread::current().name().map(str::to_owned);
            dropped.send(thread).unwrap();
        }
    });
    let _registration = informer.handle("dropping", move |event: &Event| (handler.lock().unwrap())(event));
    let other = fixture.client();
    drop(cluster);
    let maps: Api<ConfigMap> = Api::namespaced(other, fixture.namespace());
    maps.create(&Default::default(), &config_map(&fixture, "a", "first"))
        .await
        .unwrap();
    assert_eq!(was_dropped.await.unwrap().as_deref(), Some("steersman-test"));
    proxy
        .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
        .await;
}

#[steersman_testing::test]
async fn a_client_of_kube_keeps_its_cluster_alive(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let maps: Api<ConfigMap> = {
        let cluster = cluster(&fixture, &proxy).await;
        Api::namespaced(cluster.client().kube(), fixture.namespace())
    };
    assert!(maps.list(&Default::default()).await.is_ok());
}

#[steersman_testing::test]
async fn the_cache_uses_the_given_spawner(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = builder(&fixture, &proxy)
        .spawner(Spawner::current())
        .build()
        .await
        .unwrap();
    let (thread, handled) = tokio::sync::watch::channel(None);
    let informer = cluster.cache().informer(&Resource::of::<ConfigMap>());
    let _registration = informer.handle("where", move |_: &Event| {
        thread.send_replace(std::thread::current().name().map(str::to_owned));
    });
    cluster
        .client()
        .create(&config_map(&fixture, "a", "first"))
        .await
        .unwrap();
    let name = handled.clone().wait_for(Option::is_some).await.unwrap().clone();
    assert_ne!(name.as_deref(), Some("steersman-test"));
}

#[steersman_testing::test]
async fn guarantee_5_reports_the_state(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    assert_eq!(cluster.state(), ClusterState::Connecting);
    let stall = proxy.inject(Matching::watches().path("/configmaps"), Fault::stall());
    let informer = cluster.cache().informer(&Resource::of::<ConfigMap>());
    stall.hit().await;
    cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap();
    assert_eq!(cluster.state(), ClusterState::Syncing);
    drop(stall);
    cluster.state_when(ClusterState::is_ready).await;

    // A kind's trouble is named.
    let forbidden = proxy.inject(Matching::any().path("/secrets"), Fault::answer(403));
    let secrets = cluster.cache().informer(&Resource::of::<Secret>());
    let degraded = |state: &ClusterState| matches!(state, ClusterState::Degraded { .. });
    let state = cluster.state_when(degraded).await;
    assert!(
        state.to_string().starts_with("degraded: secrets/v1: forbidden"),
        "{state}"
    );
    drop(forbidden);
    cluster.state_when(ClusterState::is_ready).await;
    drop(secrets);

    // So are credentials that the server does not take.
    let refused = proxy.inject(Matching::any().path("/configmaps"), Fault::answer(401));
    let read = async || cluster.live().get::<ConfigMap>(&key(&fixture, "a")).await;
    read().await.unwrap_err();
    assert_eq!(
        cluster.state().to_string(),
        "degraded: the server rejects the credentials (401 Unauthorized): token of the configuration"
    );
    drop(refused);
    read().await.unwrap();
    assert!(cluster.state().is_ready());

    // So is a server that cannot be reached.
    let unplugged = proxy.unplug();
    let state = cluster.state_when(degraded).await;
    assert!(!state.is_ready());
    drop(unplugged);
    cluster.state_when(ClusterState::is_ready).await;
    assert!(informer.health().synced);

    // One that is being let go is in use until it is closed.
    let is_draining = |state: &ClusterState| *state == ClusterState::Draining;
    let told = cluster.state_when(is_draining);
    let (state, ()) = tokio::join!(told, async { cluster.drain() });
    assert_eq!(state.to_string(), "draining");
    assert!(!cluster.is_closed() && informer.health().synced);
    cluster.close("the test is over");
    assert_eq!(cluster.state(), ClusterState::Draining);
}

/// Does nothing unless one of the tests below runs it, with a separate environment.
#[test]
fn infers_its_cluster() {
    if std::env::var_os("INFERRING").is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::builder("inferred").build().await.unwrap();
        cluster
            .mapper()
            .resolve(&ResourceQuery::of::<ConfigMap>())
            .await
            .unwrap();
    });
}

#[steersman_testing::test]
async fn infers_the_cluster_from_the_environment(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    std::fs::write(&file, proxy.endpoint().kubeconfig(fixture.admin())).unwrap();
    let run = |path: PathBuf| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "infers_its_cluster"]);
        program.env("INFERRING", "1").env("KUBECONFIG", path);
        tokio::task::spawn_blocking(move || program.output().unwrap())
    };
    let output = run(file).await.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!(proxy.exchanges().len(), 1);
    let output = run(directory.path().join("absent")).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && said.contains("Infer(Explicit("),
        "{said}"
    );
}

/// Prepares the files of a Pod's container in a separate file system, then runs the program.
const IN_A_POD: &str = r#"
set -e
mount -t tmpfs none "$(realpath /var/run)"
mkdir -p /var/run/secrets/kubernetes.io
cp -r "$ACCOUNT" /var/run/secrets/kubernetes.io/serviceaccount
echo mounted
exec "$@"
"#;

// R96
#[cfg(target_os = "linux")]
#[steersman_testing::test]
async fn infers_the_cluster_from_the_service_account(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let account = fixture.user("account").await;
    proxy.announce(account.identity());
    let directory = tempfile::tempdir().unwrap();
    let (token, ca) = (account.identity().token(), proxy.endpoint().ca_pem());
    for (name, text) in [
        ("token", token),
        ("ca.crt", ca),
        ("namespace", fixture.namespace()),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let (host, port) = proxy.endpoint().url().rsplit_once(':').unwrap();
    let mut program = Command::new("unshare");
    program
        .args(["--map-root-user", "--mount", "sh", "-c", IN_A_POD, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "infers_its_cluster"])
        .env("INFERRING", "1")
        .env("ACCOUNT", directory.path())
        .env("KUBERNETES_SERVICE_HOST", host.trim_start_matches("https://"))
        .env("KUBERNETES_SERVICE_PORT", port)
        // No configuration of the user who runs the test.
        .env("HOME", directory.path())
        .env_remove("KUBECONFIG");
    let output = tokio::task::spawn_blocking(move || program.output())
        .await
        .unwrap();
    let Some(output) = output.ok().filter(|output| output.stdout.starts_with(b"mounted")) else {
        steersman_testing::skip_without_tool(
            "the test inside a Pod",
            "`unshare --map-root-user --mount` does not work on this system",
        );
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let asked = proxy.exchanges();
    let by_account = |one: &Exchange| one.identity.as_deref() == Some(account.identity().name());
    assert!(!asked.is_empty() && asked.iter().all(by_account), "{asked:?}");
}

#[test]
fn a_cluster_outside_of_a_runtime_is_an_error() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    assert!(matches!(
        Cluster::new(config),
        Err(ConnectError::NoRuntime { .. })
    ));
}

#[tokio::test]
async fn debug_output_contains_no_secret() {
    let mut config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    config.auth_info.token = Some("hunter2".to_owned().into());
    let cluster = Cluster::new(config).unwrap();
    let shown = format!("{cluster:?} {:?} {:?}", cluster.client(), cluster.config());
    assert!(!shown.contains("hunter2"), "{shown}");
}

// D30
#[steersman_testing::test]
async fn failing_informers_retry_when_the_server_answers(fixture: Fixture) {
    let (proxy, clock) = (fixture.proxy().await, TestClock::new());
    let builder = builder(&fixture, &proxy).clock(Arc::new(clock.clone()));
    let cluster = builder.build().await.unwrap();
    let broken = proxy.inject(Matching::any().path(fixture.namespace()), Fault::answer(503));
    let kinds = [
        Resource::of::<ConfigMap>(),
        Resource::of::<Secret>(),
        Resource::of::<Pod>(),
    ];
    let informers = kinds.map(|kind| cluster.cache().informer(&kind));
    let refused = || {
        let refused = cluster.requests().into_iter().filter(|one| one.code == Some(503));
        refused.map(|one| one.count).sum::<u64>()
    };
    // Until their back-off is longer than the test looks.
    while refused() < 30 {
        let before = refused();
        clock.advance(Duration::from_secs(10));
        let more = async {
            while refused() == before {
                tokio::task::yield_now().await;
            }
        };
        // A reflector that does not wait yet is due after the next step.
        _ = tokio::time::timeout(Duration::from_millis(50), more).await;
    }
    drop(broken);
    let here = ObjectKey::new("", fixture.namespace());
    cluster.live().get_required::<Namespace>(&here).await.unwrap();
    let healed = clock.now();
    while !informers.iter().all(|informer| informer.health().synced) {
        // An attempt that was under way fails once more. For a slow machine, time stands still after that. Their back-off is up to a minute.
        if clock.now().saturating_since(healed) < Duration::from_secs(8) {
            clock.advance(Duration::from_millis(250));
        }
        let synced = join_all(informers.iter().map(|informer| informer.synced()));
        _ = tokio::time::timeout(Duration::from_millis(100), synced).await;
    }
}
