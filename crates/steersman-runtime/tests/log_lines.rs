// SPDX-License-Identifier: Apache-2.0
//! Log lines of controllers, and their number.
//!
//! The log is that of this process, so tests look at lines of their own controllers only.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/kinds/mod.rs"]
mod kinds;
#[path = "manager/lines/mod.rs"]
mod lines;
#[path = "manager/managed/mod.rs"]
mod managed;
#[path = "manager/support/mod.rs"]
mod support;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use steersman_core::{Action, Clock, ObjectKey, TestClock};
use steersman_endpoints::Exposition;
use steersman_runtime::{
    BoxError, Context, Controller, LogLevel, Logging, Manager, Request, RunContext, RunPolicy, dynamic,
    map_fn, map_metadata, projection, reconcile_fn, run_fn, terminal,
};
use steersman_testing::{
    Fixture,
    proxy::{Fault, Matching},
};

use kinds::{TestKind, conditional};
use lines::{LINES, line, lines, logs, said_of, saying, unique};
use managed::{Log, cluster, cluster_through, config_map, is_dormant, key, manager_of, run, stands, until};

// R166, D24
#[steersman_testing::test]
async fn a_failure_is_logged_with_controller_key_and_reconcile_id(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "failing");
    let times = Arc::new(Mutex::new(0));
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let time = {
            let mut times = times.lock().unwrap();
            *times += usize::from(request.name() == "a");
            *times
        };
        std::future::ready(match (request.name(), time) {
            ("a", 1 | 2) => Err::<_, BoxError>(format!("attempt {}: the disk is full", cx.attempt()).into()),
            ("hopeless", _) => Err(terminal("it never will").into()),
            _ => Ok(Action::await_change()),
        })
    });
    Controller::of::<ConfigMap>(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    let client = manager.client().unwrap();
    for map in ["a", "hopeless"] {
        client.create(&config_map(&fixture, map, "1")).await.unwrap();
    }
    let running = run(&manager);
    let second = line(&name, |line| line["attempt"] == 2 && line["level"] == "warn").await;
    assert_eq!(second["error"], "attempt 2: the disk is full");
    assert_eq!(second["msg"], "reconcile failed; retrying");
    assert_eq!(second["key"], format!("{}/a", fixture.namespace()));
    assert_eq!(second["cluster"], "default");
    assert_eq!(second["kind"], "configmaps/v1");
    assert_eq!(second["reconcile_id"].as_str().unwrap().len(), 16);
    assert!(second["next_try"].as_str().unwrap().contains("ms"), "{second}");
    let first = line(&name, |line| line["attempt"] == 1).await;
    assert_ne!(first["reconcile_id"], second["reconcile_id"]);
    let hopeless = line(&name, |line| line["level"] == "error").await;
    assert_eq!(
        hopeless["error"],
        "terminal error: not retried until something changes: it never will"
    );
    running.stop().await.unwrap();
    let warnings = lines(&name).iter().filter(|line| line["level"] == "warn").count();
    assert_eq!(warnings, 2, "each failure is said once");
}

// R166
#[steersman_testing::test]
async fn log_lines_of_a_reconcile_have_the_fields_of_the_users_span(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "spanned");
    let reconciler = reconcile_fn(async |_: Request, cx: Context| match is_first(&cx) {
        true => {
            tracing::info!("reconciling");
            Err::<_, BoxError>("not yet".into())
        }
        false => Ok(Action::await_change()),
    });
    Controller::of::<ConfigMap>(&name)
        .span(|request: &Request| tracing::info_span!("tenant", tenant = request.namespace()))
        .add_to(&manager, reconciler)
        .unwrap();
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let running = run(&manager);
    for message in ["reconciling", "reconcile failed; retrying"] {
        let line = line(&name, |line| line["msg"] == message).await;
        assert_eq!(line["tenant"], fixture.namespace(), "{line}");
        assert_eq!(line["key"], format!("{}/a", fixture.namespace()), "{line}");
    }
    running.stop().await.unwrap();
}

// D20
#[steersman_testing::test]
async fn a_warm_controller_that_reads_a_kind_it_does_not_declare_is_named_once(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "undeclared");
    let reconciled = Arc::new(Mutex::new(0));
    let reconciles = Arc::clone(&reconciled);
    let reconciler = reconcile_fn(move |request: Request, cx: Context| {
        let reconciles = Arc::clone(&reconciles);
        async move {
            cx.client().get::<Secret>(request.key()).await?;
            *reconciles.lock().unwrap() += 1;
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    Controller::of::<ConfigMap>(&name)
        .warm()
        .add_to(&manager, reconciler)
        .unwrap();
    let client = manager.client().unwrap();
    for map in ["a", "b"] {
        client.create(&config_map(&fixture, map, "1")).await.unwrap();
    }
    let running = run(&manager);
    let warning = line(&name, |line| line["level"] == "warn").await;
    assert_eq!(
        warning["msg"],
        "undeclared kind read; a standby has no informer for it"
    );
    assert_eq!(warning["kind"], "secrets/v1");
    assert!(warning["hint"].as_str().unwrap().contains(".reads("), "{warning}");
    until(|| *reconciled.lock().unwrap() >= 2).await;
    running.stop().await.unwrap();
    let warnings = lines(&name).iter().filter(|line| line["level"] == "warn").count();
    assert_eq!(warnings, 1);
}

// D33
#[steersman_testing::test]
async fn a_failure_that_repeats_soon_is_one_warning(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "repeating");
    let reconciler = reconcile_fn(async |_: ObjectKey, cx: Context| match cx.attempt() {
        // A gateway answers with a page.
        1..=5 => Err::<_, BoxError>("<p>bad gateway</p>".repeat(500).into()),
        6 => Err("the server answers 503".into()),
        _ => Ok(Action::await_change()),
    });
    let controller = Controller::<ObjectKey>::named(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    controller.enqueue(key(&fixture, "a"));
    line(&name, |line| line["attempt"] == 6).await;
    running.stop().await.unwrap();
    let said = lines(&name);
    let levels: Vec<_> = said.iter().filter(|line| line["error"].is_string()).collect();
    let levels: Vec<_> = levels
        .iter()
        .map(|line| line["level"].as_str().unwrap())
        .collect();
    assert_eq!(levels, ["warn", "debug", "debug", "debug", "debug", "warn"]);
    let longest = said
        .iter()
        .filter_map(|line| line["error"].as_str())
        .map(str::len)
        .max();
    assert!(longest.is_some_and(|longest| longest < 1100), "{longest:?}");
}

// R161
#[steersman_testing::test]
async fn conflicts_are_no_cause_for_alarm(fixture: Fixture) {
    logs();
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = manager_of(cluster).await;
    let name = unique(&fixture, "conflicts");
    let reconciler = reconcile_fn(async |request: Request, cx: Context| {
        let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
            return Ok(Action::await_change());
        };
        if map.data.as_ref().is_some_and(|data| data["value"] != "wanted") {
            let mut map = ConfigMap::clone(&map);
            map.data = Some([("value".to_owned(), "wanted".to_owned())].into());
            cx.client().update(&map).await?;
        }
        Ok::<_, BoxError>(Action::await_change())
    });
    Controller::of::<ConfigMap>(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let conflict = proxy.inject(Matching::method("PUT").first(3), Fault::answer(409));
    let running = run(&manager);
    conflict.hit_times(3).await;
    let again = "reconcile failed; retrying";
    let quiet = line(&name, |line| line["attempt"] == 3 && line["msg"] == again).await;
    assert_eq!(quiet["level"], "debug");
    let a = key(&fixture, "a");
    while client
        .live()
        .get_required::<ConfigMap>(&a)
        .await
        .unwrap()
        .data
        .as_ref()
        .unwrap()["value"]
        != "wanted"
    {}
    running.stop().await.unwrap();
    let loud = |line: &&Value| line["level"] == "warn" || line["level"] == "error";
    assert!(!lines(&name).iter().any(|line| loud(&line)), "{:?}", lines(&name));
}

/// An error of a user that names its cause.
#[derive(Debug, thiserror::Error)]
#[error("cannot reconcile")]
struct Named<E: std::error::Error + 'static>(#[source] E);

/// An error of a user that hides behind its cause.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Transparent<E: std::error::Error + 'static>(#[from] E);

const WRAPPERS: [&str; 5] = ["source", "transparent", "anyhow", "box", "arc"];

fn wrapped<E: std::error::Error + Send + Sync + 'static>(how: &str, error: E) -> BoxError {
    match how {
        "source" => Named(error).into(),
        "transparent" => Transparent(error).into(),
        "anyhow" => anyhow::Error::from(error).into(),
        "box" => Named(Box::new(error)).into(),
        "arc" => Named(Arc::new(error)).into(),
        other => unreachable!("{other}"),
    }
}

// R161, D21
#[steersman_testing::test]
async fn conflicts_and_terminal_errors_are_recognised_under_every_wrapper(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "wrapping");
    let client = manager.client().unwrap();
    let stale = client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    client.update(&config_map(&fixture, "a", "2")).await.unwrap();
    let reconciler = reconcile_fn(move |key: ObjectKey, cx: Context| {
        let stale = ConfigMap::clone(&stale);
        async move {
            match key.namespace() {
                "terminal" => Err(wrapped(key.name(), terminal("it never will"))),
                _ if is_first(&cx) => {
                    let conflict = cx.client().update(&stale).await.unwrap_err();
                    Err(wrapped(key.name(), conflict))
                }
                _ => Ok(Action::await_change()),
            }
        }
    });
    let controller = Controller::<ObjectKey>::named(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    for how in WRAPPERS {
        for what in ["conflict", "terminal"] {
            controller.enqueue(ObjectKey::new(what, how));
            let key = format!("{what}/{how}");
            let said = line(&name, |line| line["key"] == key && line["error"].is_string()).await;
            let (level, message) = match what {
                "conflict" => ("debug", "reconcile failed; retrying"),
                _ => ("error", "reconcile failed; not retrying until something changes"),
            };
            assert_eq!(
                (&said["level"], &said["msg"]),
                (&json!(level), &json!(message)),
                "{said}"
            );
        }
    }
    running.stop().await.unwrap();
    assert!(lines(&name).iter().all(|line| line["level"] != "warn"));
}

fn is_first(cx: &Context) -> bool {
    cx.attempt() == 1
}

// R149, D18
#[steersman_testing::test]
async fn a_controller_that_triggers_itself_is_named_once(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "stamping");
    let reconciler = reconcile_fn(async |request: Request, cx: Context| {
        let stamp = json!({"data": {"stamp": cx.reconcile_id().to_string()}});
        let stamp = kube::api::Patch::Merge(stamp);
        cx.client().patch::<ConfigMap>(request.key(), &stamp).await?;
        Ok::<_, BoxError>(Action::await_change())
    });
    Controller::of::<ConfigMap>(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    manager
        .client()
        .unwrap()
        .create(&config_map(&fixture, "a", "1"))
        .await
        .unwrap();
    let running = run(&manager);
    let warning = line(&name, |line| line["level"] == "warn").await;
    assert_eq!(
        warning["msg"],
        "reconciles of this key write too often; slowing it down"
    );
    assert_eq!(warning["kind"], "configmaps/v1");
    assert_eq!(warning["key"], format!("{}/a", fixture.namespace()));
    assert_eq!(
        warning["changed"],
        format!("configmaps/v1 {}/a", fixture.namespace())
    );
    running.stop().await.unwrap();
    assert_eq!(
        lines(&name).iter().filter(|line| line["level"] == "warn").count(),
        1
    );
}

// D23
#[steersman_testing::test]
async fn a_reconcile_that_hangs_is_named_while_it_runs_and_when_the_shutdown_times_out(fixture: Fixture) {
    logs();
    let builder = Manager::builder().cluster(cluster(&fixture).await);
    let manager = builder
        .shutdown_timeout(Duration::from_millis(100))
        .build()
        .await
        .unwrap();
    let name = unique(&fixture, "hanging");
    let reconciler = reconcile_fn(async |request: Request, _: Context| {
        if request.name() == "a" {
            std::future::pending::<()>().await;
        }
        Ok::<_, BoxError>(Action::await_change())
    });
    Controller::of::<ConfigMap>(&name)
        .reconcile_warn_after(Duration::from_millis(200))
        .add_to(&manager, reconciler)
        .unwrap();
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    let running = run(&manager);
    let key = format!("{}/a", fixture.namespace());
    // On a busy machine the reconcile of another object, such as that of the CA, might take as long.
    let is_hanging = |line: &Value| line["msg"] == "reconcile is still running" && line["key"] == key;
    let warning = line(&name, is_hanging).await;
    assert_eq!(warning["level"], "warn");
    assert_eq!(warning["kind"], "configmaps/v1");
    assert_eq!(
        (&warning["long_running"], &warning["workers"]),
        (&json!(1), &json!(1))
    );
    // The shutdown ends without it, with an error or not: both have the same time.
    _ = running.stop().await;
    let left = line(&name, |line| line["keys"] == key).await;
    assert_eq!((&left["level"], &left["in_flight"]), (&json!("warn"), &json!(1)));
    let all = lines(&name);
    assert_eq!(all.iter().filter(|line| is_hanging(line)).count(), 1);
}

/// A map of which some are not.
#[derive(serde::Deserialize)]
struct Numbered {
    data: Number,
}

#[derive(serde::Deserialize)]
struct Number {
    number: String,
}

// R160, R165
#[steersman_testing::test]
async fn mappings_that_cannot_decode_or_panic_are_logged_and_counted(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let (name, log) = (unique(&fixture, "mapping"), Log::new());
    let namespace = fixture.namespace().to_owned();
    let by_number = map_fn(move |map: &Numbered| {
        let number: u32 = map.data.number.parse().unwrap();
        Some(Request::new(
            "default".into(),
            ObjectKey::new(&namespace, &number.to_string()),
        ))
    });
    Controller::named(&name)
        .watches(projection::<ConfigMap, Numbered>(), by_number)
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    let client = manager.client().unwrap();
    for (map, data) in [
        ("unreadable", json!({"value": "1"})),
        ("breaking", json!({"number": "none"})),
        ("fine", json!({"number": "7"})),
    ] {
        let mut object = config_map(&fixture, map, "");
        object.data = serde_json::from_value(data).unwrap();
        client.create(&object).await.unwrap();
    }
    log.when(|entries| entries.iter().any(|(request, _)| request.name() == "7"))
        .await;
    let warning = line(&name, |line| line["level"] == "warn").await;
    assert_eq!(warning["key"], format!("{}/unreadable", fixture.namespace()));
    assert!(warning["error"].as_str().unwrap().contains("data"), "{warning}");
    let mut lines = LINES.get().unwrap().subscribe();
    let is_meant = |line: &Value| line["handler"] == *name && line["level"] == "error";
    let lines = lines.wait_for(|lines| lines.iter().any(is_meant)).await.unwrap();
    let broken = lines.iter().find(|line| is_meant(line)).unwrap().clone();
    drop(lines);
    assert_eq!(broken["key"], format!("{}/breaking", fixture.namespace()));
    let text = manager.metrics().encode(Exposition::Text);
    let about = format!(
        "kind=\"configmaps/v1\",scope=\"namespaces={}\"}} 1.0",
        fixture.namespace()
    );
    for expected in [
        format!("steersman_cache_decode_failures_total{{cluster=\"default\",{about}"),
        format!("steersman_cache_handler_panics_total{{cluster=\"default\",handler=\"{name}\",{about}"),
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected}\n{text}");
    }
    running.stop().await.unwrap();
}

// R67
#[steersman_testing::test]
async fn failures_after_the_first_one_are_logged(fixture: Fixture) {
    logs();
    let manager = Manager::builder().without_cluster().build().await.unwrap();
    let names = ["first", "second"].map(|name| unique(&fixture, name));
    let first = run_fn(&names[0], async |_: RunContext| Err("this one counts".into()));
    let second = run_fn(&names[1], async |cx: RunContext| {
        cx.stop().requested().await;
        Err("this one is late".into())
    });
    manager.add(first).unwrap();
    manager.add(second.with_policy(RunPolicy::AllReplicas)).unwrap();
    let error = run(&manager).ended().await.unwrap_err();
    assert_eq!(error.to_string(), format!("`{}` failed", names[0]));
    assert_eq!(
        said_of(&names[0], "runnable failed; ending the run").await["error"],
        "this one counts"
    );
    let late = said_of(&names[1], "runnable failed while stopping").await;
    assert_eq!(late["error"], "this one is late");
}

// R67
#[steersman_testing::test]
async fn a_failure_caused_by_the_stop_is_neither_returned_nor_logged(fixture: Fixture) {
    logs();
    let (near, far) = (cluster(&fixture).await, cluster(&fixture).await);
    let manager = manager_of(near).await;
    let names = ["closed", "cancelled"].map(|name| unique(&fixture, name));
    let map = key(&fixture, "a");
    let closed = run_fn(&names[0], move |cx: RunContext| {
        let (far, map) = (far.clone(), map.clone());
        async move {
            cx.stop().requested().await;
            far.close("it is over");
            far.live().get::<ConfigMap>(&map).await?;
            Ok(())
        }
    });
    let cancelled = run_fn(&names[1], async |cx: RunContext| {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(std::future::pending::<()>());
        cx.stop().requested().await;
        tasks.abort_all();
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    });
    manager.add(closed.with_policy(RunPolicy::AllReplicas)).unwrap();
    manager
        .add(cancelled.with_policy(RunPolicy::AllReplicas))
        .unwrap();
    let running = run(&manager);
    for name in &names {
        stands(&manager, name, steersman_runtime::RunnableStatus::is_ready).await;
    }
    running.stop().await.unwrap();
    for name in &names {
        let said = said_of(name, "runnable stopped").await;
        assert_eq!(said["level"], "debug", "{said}");
        let all = LINES.get().unwrap().borrow();
        let mut loud = all
            .iter()
            .filter(|line| line["name"] == **name && (line["level"] == "warn" || line["level"] == "error"));
        assert!(loud.next().is_none());
    }
}

// R117
#[steersman_testing::test]
async fn the_log_level_follows_a_config_map(fixture: Fixture) {
    let written = Logging::new().filter("info").writer(io::sink).build().unwrap();
    let (_dispatch, handle) = written;
    let manager = manager_of(cluster(&fixture).await).await;
    let settings: ObjectKey = key(&fixture, "settings");
    let level = LogLevel::new(handle.clone(), manager.cluster().unwrap(), settings.clone());
    manager.add(level).unwrap();
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    let client = manager.client().unwrap();
    let map = |filter: &str| -> ConfigMap {
        let map = json!({
            "metadata": {"name": "settings", "namespace": fixture.namespace()},
            "data": {"log-filter": filter},
        });
        serde_json::from_value(map).unwrap()
    };
    client.create(&map("debug")).await.unwrap();
    until(|| handle.filter() == "debug").await;
    // An invalid value changes nothing.
    client.update(&map("loud=very")).await.unwrap();
    log.when(|entries| {
        entries
            .iter()
            .filter(|(request, _)| request.name() == "settings")
            .count()
            >= 2
    })
    .await;
    assert_eq!(handle.filter(), "debug");
    client.update(&map("warn,steersman=trace")).await.unwrap();
    until(|| handle.filter().contains("steersman=trace")).await;
    client
        .delete::<ConfigMap>(&settings, steersman_cluster::DeleteOptions::default())
        .await
        .unwrap();
    until(|| handle.filter() == "info").await;
    running.stop().await.unwrap();
}

// R117
#[steersman_testing::test]
async fn a_forbidden_config_map_does_no_harm(fixture: Fixture) {
    let (_dispatch, handle) = Logging::new().writer(io::sink).build().unwrap();
    let proxy = fixture.proxy().await;
    let forbidden = proxy.inject(Matching::any().path("/configmaps"), Fault::answer(403));
    let cluster = cluster_through(&fixture, &proxy, "default").await;
    let manager = Manager::builder()
        .cluster(cluster)
        .health(support::HERE)
        .build()
        .await
        .unwrap();
    let settings = key(&fixture, "settings");
    manager
        .add(LogLevel::new(handle.clone(), manager.cluster().unwrap(), settings).entry("value"))
        .unwrap();
    let running = run(&manager);
    forbidden.hit().await;
    assert!(manager.statuses().of("log-level").unwrap().is_ready());
    let readyz = support::get(manager.addresses().health.unwrap(), "/readyz").await;
    assert_eq!(readyz.status, 200, "{}", readyz.body);
    let map = config_map(&fixture, "settings", "debug");
    let direct = managed::cluster(&fixture).await;
    direct.live().create(&map).await.unwrap();
    drop(forbidden);
    tokio::time::timeout(Duration::from_secs(60), until(|| handle.filter() == "debug"))
        .await
        .unwrap();
    running.stop().await.unwrap();
}

// R38
#[steersman_testing::test]
async fn an_installed_or_removed_kind_is_one_log_line_with_the_reason(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let (name, widgets) = (unique(&fixture, "widgets"), TestKind::new(&fixture, "Widget"));
    let seen = conditional(&manager, &name, &widgets);
    let client = cluster(&fixture).await.live();
    let dormant = || stands(&manager, &name, is_dormant);
    let running = run(&manager);
    dormant().await;
    for _ in 0..2 {
        widgets.install().await;
        widgets.apply(&client, "one").await;
        seen.saw("one").await;
        widgets.uninstall().await;
        dormant().await;
        seen.clear();
    }
    running.stop().await.unwrap();
    let lines = LINES.get().unwrap().borrow().clone();
    let said = lines
        .iter()
        .filter(|line| line["name"] == *name && line["level"] != "debug")
        .map(|line| (line["msg"].as_str().unwrap(), line["reason"].as_str()));
    let gone = format!("runnable dormant: {} is not installed", widgets.resource);
    let there = format!("{} is installed", widgets.resource);
    let (gone, starting) = (
        (gone.as_str(), None),
        ("run condition is true; starting runnable", Some(there.as_str())),
    );
    let said: Vec<_> = said.collect();
    assert_eq!(said, [gone, starting, gone, starting, gone]);
}

// R38
#[steersman_testing::test]
async fn an_optional_kind_that_is_installed_or_removed_is_one_log_line(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let (name, widgets) = (unique(&fixture, "maps"), TestKind::new(&fixture, "Widget"));
    let optional = dynamic(widgets.resource.clone()).optional();
    Controller::of::<ConfigMap>(&name)
        .watches(optional, map_metadata(|widget| Some(widget.key())))
        .add_to(&manager, Log::new())
        .unwrap();
    let running = run(&manager);
    let said = || {
        let mut said = lines(&name);
        said.retain(|line| line["kind"] == widgets.resource.to_string() && line["level"] == "info");
        said
    };
    until(|| said().len() == 1).await;
    widgets.install().await;
    until(|| said().len() == 2).await;
    widgets.uninstall().await;
    until(|| said().len() == 3).await;
    running.stop().await.unwrap();
    let there = (
        "kind is installed; watching it",
        format!("{} is installed", widgets.resource),
    );
    let gone = (
        "kind is not installed; not watching it",
        format!("{} is not installed", widgets.resource),
    );
    let said = said();
    let said: Vec<_> = said
        .iter()
        .map(|line| {
            assert_eq!(line["cluster"], "default");
            (
                line["msg"].as_str().unwrap(),
                line["reason"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(said, [gone.clone(), there, gone]);
}

#[steersman_testing::test]
async fn of_two_that_fail_at_once_one_ends_the_run_and_the_other_is_in_the_log(fixture: Fixture) {
    logs();
    let manager = Manager::builder().without_cluster().build().await.unwrap();
    let names = ["one", "two"].map(|name| unique(&fixture, name));
    for name in &names {
        let failing = run_fn(name.clone(), async |_: RunContext| Err("it is broken".into()));
        manager.add(failing).unwrap();
    }
    let error = run(&manager).ended().await.unwrap_err().to_string();
    let (ending, other) = match error.contains(&names[0]) {
        true => (&names[0], &names[1]),
        false => (&names[1], &names[0]),
    };
    saying("runnable failed; ending the run", |line| {
        line["name"] == ending.as_str()
    })
    .await;
    let lost = saying("runnable failed during shutdown", |line| {
        line["name"] == other.as_str()
    });
    assert_eq!(lost.await["error"], "it is broken");
}

// R71
#[steersman_testing::test]
async fn a_cache_that_is_stuck_is_named(fixture: Fixture) {
    logs();
    let proxy = fixture.proxy().await;
    let clock = TestClock::new();
    let name = unique(&fixture, "stuck");
    let stuck = managed::cluster_builder(&fixture, &name)
        .config(proxy.endpoint().config(fixture.admin()).unwrap())
        .clock(Arc::new(clock.clone()));
    let manager = Manager::builder()
        .cluster(stuck.build().await.unwrap())
        .clock(Arc::new(clock.clone()))
        .cache_sync_timeout(Duration::from_secs(20))
        .build()
        .await
        .unwrap();
    Controller::of::<ConfigMap>(name.clone())
        .add_to(&manager, Log::new())
        .unwrap();
    let stall = proxy.inject(Matching::any(), Fault::stall());
    let limit = clock.now() + Duration::from_secs(20);
    let running = run(&manager);
    stall.hit().await;
    // Not before a task waits for it.
    while clock.now() < limit {
        match clock.next_deadline() {
            Some(deadline) if deadline <= limit => clock.advance_to(deadline),
            _ => tokio::task::yield_now().await,
        }
    }
    let named = format!("configmaps/v1 (cluster {name})");
    saying("not in sync in time; the others start without them", |line| {
        line["late"].to_string().contains(&named)
    })
    .await;
    running.stop().await.unwrap();
}
