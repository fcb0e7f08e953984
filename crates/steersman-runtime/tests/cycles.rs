// SPDX-License-Identifier: Apache-2.0
//! A manager that is started and stopped again and again leaves nothing behind. Memory is that of this process, so that
//! nothing else is tested here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/managed/mod.rs"]
mod managed;

use k8s_openapi::api::core::v1::ConfigMap;
use steersman_core::{Action, Spawner};
use steersman_runtime::{BoxError, Context, Controller, Manager, Request, RunContext, reconcile_fn, run_fn};
use steersman_testing::Fixture;
use tokio::{runtime::Handle, sync::watch};

use managed::{cluster_builder, config_map, run, until};

const CYCLES: usize = 50;

/// Two megabytes in all, so that a store that is left behind in each cycle shows.
const OBJECTS: usize = 200;
const OBJECT_BYTES: usize = 10_000;

/// Random variation of memory: less than half of the stores of all cycles.
const SLACK_BYTES: usize = 12 << 20;

// R9, R59, D26
#[steersman_testing::test]
async fn guarantee_6_fifty_runs_leave_nothing_behind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // On this runtime, so that its tasks are counted with the others.
    let cluster = cluster_builder(&fixture, "default")
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .spawner(Spawner::current());
    let cluster = cluster.build().await.unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    let client = manager.client().unwrap();
    for number in 0..OBJECTS {
        let map = config_map(&fixture, &format!("map-{number}"), &"x".repeat(OBJECT_BYTES));
        client.create(&map).await.unwrap();
    }
    let (count, mut counted) = watch::channel(0);
    let reconciler = reconcile_fn(move |request: Request, _: Context| {
        count.send_modify(|count| *count += usize::from(request.name() == "map-0"));
        std::future::ready(Ok::<_, BoxError>(Action::await_change()))
    });
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, reconciler)
        .unwrap();
    let task = run_fn("task", async |cx: RunContext| {
        cx.stop().requested().await;
        Ok(())
    });
    manager.add(task).unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let (mut base, mut resident) = (None, Vec::new());
    for cycle in 1..=CYCLES {
        let running = run(&manager);
        counted.wait_for(|count| *count >= cycle).await.unwrap();
        running.stop().await.unwrap();
        proxy
            .wait_for(|all| all.iter().all(|one| !one.is_open()).then_some(()))
            .await;
        proxy.forget_ended();
        // Cancelled tasks are dropped when their thread polls them.
        let cluster = manager.cluster().unwrap();
        until(|| manager.statuses().all().is_empty() && cluster.cache().informers().is_empty()).await;
        // Connections that wait for the next request are there after the first.
        let (most_tasks, most_connections) = *base.get_or_insert_with(|| (tasks(), proxy.connections()));
        until(|| tasks() <= most_tasks && proxy.connections() <= most_connections).await;
        resident.push(resident_bytes());
    }
    // One-time allocations are made in the first few cycles.
    let (early, late) = (&resident[2..5], &resident[CYCLES - 5..]);
    let (early, late) = (early.iter().max().unwrap(), late.iter().min().unwrap());
    assert!(*late < early + SLACK_BYTES, "resident bytes: {resident:?}");
    drop((manager, client));
    proxy.has_connections(0).await;
}

/// How much memory this process has, as far as its system tells.
fn resident_bytes() -> usize {
    const PAGE_BYTES: usize = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1);
    pages.map_or(0, |pages| pages.parse::<usize>().unwrap() * PAGE_BYTES)
}
