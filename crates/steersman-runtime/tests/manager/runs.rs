// SPDX-License-Identifier: Apache-2.0
//! One run of a manager after another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::managed;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use steersman_core::ObjectKey;
use steersman_runtime::{Controller, Manager, RunContext, RunPolicy, Runnable, kind, map_fn, run_fn};
use steersman_testing::{Fixture, ServerKind};
use tokio::sync::watch;

use managed::{Log, Steps, cluster_through, config_map, key, let_go_on, manager_of, run, until};

async fn without_cluster() -> Manager {
    Manager::builder().without_cluster().build().await.unwrap()
}

#[tokio::test]
async fn elected_in_waits_for_an_election_in_a_later_run() {
    let manager = without_cluster().await;
    let mut elected = Box::pin(manager.elected());
    let unelected = manager.run_until(async {
        // Waits within a run that ends before anybody leads.
        assert!(elected.as_mut().now_or_never().is_none());
    });
    unelected.await.unwrap();
    assert!(elected.as_mut().now_or_never().is_none());
    let running = run(&manager);
    manager.elected().await;
    assert!(elected.now_or_never().is_some());
    running.stop().await.unwrap();
}

/// Notes how often it has begun. The first time it holds its thread, so that it cannot be cancelled until `go_on` says so.
fn deaf_at_first(
    needs: RunPolicy,
    begun: &Arc<watch::Sender<usize>>,
) -> (impl Runnable, std::sync::mpsc::Sender<()>) {
    let (go_on, blocked) = std::sync::mpsc::channel::<()>();
    let (begun, blocked) = (Arc::clone(begun), Mutex::new(Some(blocked)));
    let deaf = run_fn("deaf", move |cx: RunContext| {
        begun.send_modify(|begun| *begun += 1);
        let blocked = blocked.lock().unwrap().take();
        async move {
            if let Some(blocked) = blocked {
                let _ = blocked.recv();
            }
            cx.stop().requested().await;
            Ok(())
        }
    });
    (deaf.with_policy(needs), go_on)
}

/// A run that is dropped while something runs that does not hear of it.
async fn cancelled_in_its_midst(manager: &Manager, begun: &watch::Sender<usize>) {
    let mut begins = begun.subscribe();
    tokio::select! {
        _ = manager.run_until(std::future::pending()) => panic!("nobody ends it"),
        _ = begins.wait_for(|begun| *begun == 1) => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn guarantee_6_runnables_of_a_cancelled_run_end_before_the_next_run_starts_them() {
    let manager = without_cluster().await;
    let (begun, steps) = (Arc::new(watch::Sender::new(0)), Steps::new());
    let (deaf, go_on) = deaf_at_first(RunPolicy::AllReplicas, &begun);
    manager.add(deaf).unwrap();
    cancelled_in_its_midst(&manager, &begun).await;
    // Leader-elected runnables start when all others have made their first step, or wait for their former tasks.
    let starting = steps.clone();
    let leader = run_fn("leader", move |_: RunContext| {
        starting.add("leader starts");
        std::future::ready(Ok(()))
    });
    manager.add(leader).unwrap();
    let running = run(&manager);
    steps.saw("leader starts").await;
    assert_eq!(*begun.borrow(), 1);
    go_on.send(()).unwrap();
    begun.subscribe().wait_for(|begun| *begun == 2).await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn guarantee_1_caches_wait_for_runnables_before_caches_also_after_a_cancelled_run() {
    let manager = without_cluster().await;
    let (begun, steps) = (Arc::new(watch::Sender::new(0)), Steps::new());
    let (deaf, go_on) = deaf_at_first(RunPolicy::BeforeCaches, &begun);
    manager.add(deaf).unwrap();
    cancelled_in_its_midst(&manager, &begun).await;
    let seen = Arc::clone(&begun);
    let noted = steps.clone();
    let after_caches = run_fn("after-caches", move |_: RunContext| {
        noted.add(format!("{} have begun", *seen.borrow()));
        noted.add("caches are filled");
        async { Ok(()) }
    });
    manager
        .add(after_caches.with_policy(RunPolicy::AllReplicas))
        .unwrap();
    let running = run(&manager);
    let_go_on().await;
    go_on.send(()).unwrap();
    steps.saw("caches are filled").await;
    assert_eq!(steps.all()[0], "2 have begun");
    running.stop().await.unwrap();
}

/// Returns true if the thread of a cluster runs. Known on Linux only.
fn has_thread(cluster: &str) -> bool {
    let name = format!("steersman-{cluster}\n");
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return cfg!(not(target_os = "linux"));
    };
    let names = threads.flatten().map(|thread| thread.path().join("comm"));
    let mut names = names.filter_map(|path| std::fs::read_to_string(path).ok());
    names.any(|found| found == name)
}

// D31
#[steersman_testing::test]
async fn a_dropped_manager_leaves_no_connection_and_no_thread_although_a_handler_holds_its_cluster(
    fixture: Fixture,
) {
    let proxy = fixture.proxy().await;
    // No other cluster of this process has the name. The system cuts names of threads after 15 characters.
    let name = match fixture.server_kind() {
        ServerKind::Embedded => "first",
        _ => "other",
    };
    let cluster = cluster_through(&fixture, &proxy, name).await;
    let manager = manager_of(cluster.clone()).await;
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "map", "1")).await.unwrap();
    assert!(has_thread(name));
    let log = Log::new();
    let mapping = map_fn(move |secret: &Secret| {
        let namespace = secret.metadata.namespace.as_deref()?;
        Some(ObjectKey::new(namespace, cluster.name().as_str()))
    });
    let controller = Controller::of::<ConfigMap>("maps")
        .watches(kind::<Secret>(), mapping)
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    log.saw("map", Some("1")).await;
    // The client of the manager holds these informers as long as the cluster lives.
    assert_eq!(client.get::<Secret>(&key(&fixture, "none")).await.unwrap(), None);
    client
        .get_required::<ConfigMap>(&key(&fixture, "map"))
        .await
        .unwrap();
    running.stop().await.unwrap();
    drop((manager, client, controller));
    proxy.has_connections(0).await;
    until(|| !has_thread(name)).await;
}
