// SPDX-License-Identifier: Apache-2.0
//! A kind with many objects that is installed and uninstalled again and again, and what is left of it in the operator,
//! which is a process of its own.
//!
//! `cargo xtask bench conditional` does the same five hundred times; `STEERSMAN_CYCLES` says how often it is done here.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/elected/mod.rs"]
mod elected;
#[path = "manager/kinds/mod.rs"]
mod kinds;
#[path = "manager/managed/mod.rs"]
mod managed;
#[path = "manager/processes/mod.rs"]
mod processes;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api,
    api::{ApiResource, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_core::{Action, Spawner};
use steersman_runtime::{
    BoxError, Context, Controller, Manager, Request, RunnableStatus, dynamic, reconcile_fn,
};
use steersman_testing::{Fixture, ServerKind};
use tokio::{runtime::Handle, sync::watch};

use kinds::TestKind;
use processes::{Program, be, cluster_of, say};

const OBJECTS: usize = 1000;

/// Work of the child process; does nothing in the test itself.
#[test]
fn replica() {
    be(operate);
}

/// An operator that reports when it has seen all objects, and its memory after their kind was removed.
async fn operate(role: Value) {
    let text = |field: &str| role[field].as_str().unwrap().to_owned();
    let spawner = Spawner::current();
    // Its tasks are counted with all others, and unused informers linger for the default time.
    let cluster = cluster_of(&role).spawner(spawner).build().await.unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    let resource = Resource::new(&text("group"), "v1", "Widget", "widgets");
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let (counting, mut count) = watch::channel(0);
    let names = Arc::clone(&seen);
    let count_names = reconcile_fn(move |request: Request, _: Context| {
        let mut names = names.lock().unwrap();
        names.insert(request.name().to_owned());
        counting.send_replace(names.len());
        std::future::ready(Ok::<_, BoxError>(Action::await_change()))
    });
    Controller::of_kind("widgets", dynamic(resource))
        .when_installed()
        .workers(4)
        .add_to(&manager, count_names)
        .unwrap();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let follow = async {
        let is_dormant = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Dormant { .. });
        let standings = manager.statuses();
        let dormant = async || {
            let of_widgets = |all: Option<&RunnableStatus>| all.is_some_and(is_dormant);
            standings.when(|all| of_widgets(all.get("widgets"))).await;
        };
        dormant().await;
        say("dormant");
        let mut most = None;
        loop {
            count.wait_for(|count| *count >= OBJECTS).await.unwrap();
            say("saw all");
            dormant().await;
            seen.lock().unwrap().clear();
            // Connections that are kept for the next request are there after the first time.
            let most = *most.get_or_insert_with(tasks);
            while tasks() > most {
                tokio::task::yield_now().await;
            }
            say(&format!("resident {}", resident()));
        }
    };
    tokio::select! {
        biased;
        ended = manager.run() => ended.unwrap(),
        () = follow => {}
    }
}

/// How much memory this process has, in pages.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn cycles(fixture: &Fixture) -> usize {
    let asked = std::env::var("STEERSMAN_CYCLES").ok();
    let asked = asked.map(|asked| asked.parse().unwrap());
    asked.unwrap_or(match fixture.server_kind() {
        ServerKind::Embedded => 25,
        _ => 5,
    })
}

/// Creates all objects, by the quickest way there is.
async fn create_all(fixture: &Fixture, widgets: &TestKind) {
    let client = match fixture.embedded_server() {
        Some(embedded) => kube::Client::new(embedded.server().service(), fixture.namespace()),
        None => fixture.client(),
    };
    let resource = &widgets.resource;
    let described = ApiResource {
        group: resource.group().to_owned(),
        version: resource.version().to_owned(),
        api_version: resource.api_version(),
        kind: resource.kind().to_owned(),
        plural: resource.plural().to_owned(),
    };
    let objects: Api<DynamicObject> = Api::namespaced_with(client, fixture.namespace(), &described);
    let create = async |number: usize| {
        let object = widgets.object(&format!("widget-{number}"));
        objects.create(&PostParams::default(), &object).await.map(|_| ())
    };
    // As soon as the server takes them.
    while let Err(error) = create(0).await {
        // It has no definition in force yet, or the former one still.
        let is_early = matches!(&error, kube::Error::Api(status)
            if status.code == 404 || status.message.contains("is terminating"));
        assert!(is_early, "{error:?}");
        tokio::task::yield_now().await;
    }
    let created = stream::iter(1..OBJECTS).map(create).buffer_unordered(32);
    created.try_collect::<()>().await.unwrap();
}

// R4, R9, R21, R26
#[steersman_testing::test]
async fn memory_and_tasks_are_the_same_after_any_number_of_installs_of_a_thousand_objects(fixture: Fixture) {
    let widgets = TestKind::new(&fixture, "Widget");
    let role = json!({
        "endpoint": fixture.endpoint(), "identity": fixture.admin(),
        "namespace": fixture.namespace(), "group": fixture.group(),
    });
    let mut operator = Program::copy(&role, fixture.admin(), "operator");
    operator.says("dormant", 1).await;
    let mut readings = Vec::new();
    for cycle in 1..=cycles(&fixture) {
        widgets.install().await;
        create_all(&fixture, &widgets).await;
        operator.says("saw all", cycle).await;
        widgets.uninstall().await;
        let resident: u64 = operator.tells("resident ", cycle).await.parse().unwrap();
        readings.push(resident);
    }
    // One-time allocations are made in the first fifth.
    let steady = &readings[readings.len().div_ceil(5)..];
    let (least, most) = (steady.iter().min().unwrap(), steady.iter().max().unwrap());
    let mut sorted = steady.to_vec();
    sorted.sort_unstable();
    let plateau = sorted[sorted.len() / 2];
    assert!(
        most * 10 <= plateau * 11 && least * 10 >= plateau * 9,
        "resident memory in pages: {readings:?}"
    );
}
