// SPDX-License-Identifier: Apache-2.0
//! Log lines about trouble with a server or with the log filter, and about leadership.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "manager/lines/mod.rs"]
mod lines;
#[path = "manager/managed/mod.rs"]
mod managed;

use std::{io, sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use steersman_core::{Action, ObjectKey, TestClock};
use steersman_runtime::{
    BoxError, Context, Controller, Election, LogLevel, Logging, Manager, RunContext, RunPolicy,
    RunnableStatus, reconcile_fn, run_fn,
};
use steersman_testing::{
    Fixture,
    proxy::{Cut, Fault, Matching},
};
use tokio::sync::watch;

use lines::{LINES, line, logs, said_of, saying, unique};
use managed::{Log, cluster, cluster_through, config_map, key, manager_of, run, stands, until};

fn is_degraded(standing: &RunnableStatus) -> bool {
    matches!(standing, RunnableStatus::Degraded { .. })
}

/// The lines about a runnable that people see by default: level and message.
fn visible(name: &str) -> Vec<(String, String)> {
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let all = LINES.get().unwrap().borrow();
    let about = all
        .iter()
        .filter(|line| line["name"] == name || line["controller"] == name);
    about
        .filter(|line| line["level"] != "debug")
        .map(|line| (text(line, "level"), text(line, "msg")))
        .collect()
}

fn said(lines: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(level, text): &(&str, &str)| ((*level).to_owned(), (*text).to_owned());
    lines.iter().map(owned).collect()
}

// D33
#[steersman_testing::test]
async fn a_cut_watch_a_410_a_lost_connection_and_an_html_404_are_no_warnings(fixture: Fixture) {
    logs();
    let proxy = fixture.proxy().await;
    let (name, log) = (unique(&fixture, "ordinary"), Log::new());
    // For the manager no time passes, so that a slow machine makes no trouble long.
    let manager = Manager::builder()
        .cluster(cluster_through(&fixture, &proxy, "default").await)
        .clock(Arc::new(TestClock::new()))
        .build()
        .await
        .unwrap();
    Controller::of::<ConfigMap>(&name)
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    stands(&manager, &name, RunnableStatus::is_ready).await;
    let client = cluster(&fixture).await.live();
    let watches = || Matching::watches().path("/configmaps");
    let expired = proxy.inject(watches().first(1), Fault::error_event(410));
    proxy.cut(&watches(), Cut::Abrupt);
    expired.hit().await;
    client
        .create(&config_map(&fixture, "after-410", "1"))
        .await
        .unwrap();
    log.saw("after-410", Some("1")).await;
    // A middlebox has lost its way to the server.
    let lost = Fault::respond(404, "text/html", "<html>not found</html>");
    let lost = proxy.inject(Matching::any().path("/configmaps").first(3), lost);
    proxy.cut_connections();
    lost.hit_times(3).await;
    client
        .create(&config_map(&fixture, "after-404", "1"))
        .await
        .unwrap();
    log.saw("after-404", Some("1")).await;
    stands(&manager, &name, RunnableStatus::is_ready).await;
    running.stop().await.unwrap();
    assert_eq!(visible(&name), said(&[("info", "runnable ready")]));
}

// D33
#[steersman_testing::test]
async fn trouble_that_lasts_is_one_warning_that_names_cluster_and_replica(fixture: Fixture) {
    logs();
    let proxy = fixture.proxy().await;
    let (name, clock) = (unique(&fixture, "lasting"), TestClock::new());
    let election = Election::new(unique(&fixture, "lease"))
        .namespace(fixture.namespace())
        .identity("replica-1");
    let manager = Manager::builder()
        .cluster(cluster_through(&fixture, &proxy, "near").await)
        .clock(Arc::new(clock.clone()))
        .leader_election(election)
        .build()
        .await
        .unwrap();
    Controller::of::<ConfigMap>(&name)
        .warm()
        .add_to(&manager, Log::new())
        .unwrap();
    let running = run(&manager);
    let names_both = |line: &Value| {
        assert_eq!(line["cluster"], "near", "{line}");
        assert_eq!(line["replica"], "replica-1", "{line}");
    };
    names_both(&said_of(&name, "runnable ready").await);

    let about_maps = || Matching::any().path("/configmaps");
    let first = proxy.inject(about_maps(), Fault::answer(500));
    proxy.cut(&about_maps(), Cut::Abrupt);
    stands(&manager, &name, is_degraded).await;
    clock.advance(Duration::from_secs(5));
    let warning = said_of(&name, "runnable degraded").await;
    names_both(&warning);
    assert!(
        warning["reason"].as_str().unwrap().contains("configmaps/v1"),
        "{warning}"
    );
    // Another reason for the same state is not logged again.
    let reason = manager.statuses().of(&name);
    let second = proxy.inject(about_maps(), Fault::answer(403));
    drop(first);
    stands(&manager, &name, |now| {
        is_degraded(now) && Some(now) != reason.as_ref()
    })
    .await;
    running.stop().await.unwrap();
    drop(second);
    assert_eq!(
        visible(&name),
        said(&[("info", "runnable ready"), ("warn", "runnable degraded")])
    );
}

// D24
#[steersman_testing::test]
async fn a_standby_names_the_leader_and_a_lost_leader_is_not_ready_again(fixture: Fixture) {
    logs();
    let proxy = fixture.proxy().await;
    let lease = unique(&fixture, "lease");
    let replica = async |identity: &str, cluster| {
        let (name, identity) = (unique(&fixture, identity), unique(&fixture, identity));
        let election = Election::new(&*lease)
            .namespace(fixture.namespace())
            .identity(&*identity)
            .lease_duration(Duration::from_secs(3))
            .renew_deadline(Duration::from_secs(2))
            .retry_period(Duration::from_millis(200));
        let manager = Manager::builder().cluster(cluster).leader_election(election);
        let manager = manager.build().await.unwrap();
        Controller::of::<ConfigMap>(&name)
            .warm()
            .add_to(&manager, Log::new())
            .unwrap();
        (run(&manager), name, manager)
    };
    let about = |identity: &str, message: &'static str| {
        let identity = unique(&fixture, identity);
        async move { saying(message, |line| line["identity"] == *identity).await }
    };
    let (one, first, _manager) = replica("one", cluster_through(&fixture, &proxy, "default").await).await;
    about("one", "acquired lease; leading").await;
    said_of(&first, "runnable ready").await;
    let (two, _, _manager) = replica("two", cluster(&fixture).await).await;
    let standing_by = about("two", "waiting for lease").await;
    assert_eq!(standing_by["leader"], unique(&fixture, "one"));

    let broken = proxy.inject(Matching::any().path("/leases"), Fault::answer(500));
    about("one", "stopped leading").await;
    about("two", "acquired lease; leading").await;
    drop(broken);
    let standing_by = about("one", "waiting for lease").await;
    assert_eq!(standing_by["leader"], unique(&fixture, "two"));
    one.stop().await.unwrap();
    two.stop().await.unwrap();
    assert_eq!(visible(&first), said(&[("info", "runnable ready")]));
}

/// Leader work that continues after its term has ended.
async fn goes_on_without_a_term(cx: RunContext) -> Result<(), BoxError> {
    cx.ready();
    let _term = cx.leadership().term().await;
    cx.stop().requested().await;
    Ok(())
}

// D12
#[steersman_testing::test]
async fn leader_work_that_does_not_end_after_its_lease_was_lost_is_a_warning_and_then_an_error(
    fixture: Fixture,
) {
    logs();
    let (lease, clock) = (unique(&fixture, "lease"), TestClock::new());
    let election = Election::new(&*lease)
        .namespace(fixture.namespace())
        .step_down_timeout(Duration::from_secs(30));
    let manager = Manager::builder()
        .cluster(cluster(&fixture).await)
        .clock(Arc::new(clock.clone()))
        .leader_election(election)
        .build()
        .await
        .unwrap();
    let deaf = run_fn("deaf", goes_on_without_a_term);
    manager.add(deaf.with_policy(RunPolicy::Warm)).unwrap();
    let running = run(&manager);
    manager.elected().await;
    let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.namespace());
    let theft = Patch::Merge(json!({"spec": {"holderIdentity": "thief"}}));
    leases
        .patch(&lease, &PatchParams::default(), &theft)
        .await
        .unwrap();
    manager.leadership_lost().await;
    let name = format!("{}/{lease}", fixture.namespace());
    let message = "leader work is still running after the lease was lost; failing liveness";
    let mut failing = std::pin::pin!(saying(message, |line| line["lease"] == name));
    let line = loop {
        clock.advance(Duration::from_secs(1));
        let waited = tokio::time::timeout(Duration::from_millis(5), &mut failing).await;
        if let Ok(line) = waited {
            break line;
        }
    };
    assert_eq!((&line["level"], &line["terms"]), (&json!("error"), &json!(1)));
    let warning = said_of(&format!("lease {name}"), "runnable degraded").await;
    let reason = warning["reason"].as_str().unwrap();
    assert_eq!(warning["level"], "warn");
    assert!(
        reason.starts_with("leader work is still running 30s after"),
        "{reason}"
    );
    running.stop().await.unwrap();
}

// R117
#[steersman_testing::test]
async fn only_a_change_of_the_entry_changes_the_log_filter_and_an_invalid_one_is_logged_once(
    fixture: Fixture,
) {
    logs();
    let (_dispatch, handle) = Logging::new().writer(io::sink).build().unwrap();
    let manager = manager_of(cluster(&fixture).await).await;
    let settings = key(&fixture, "settings");
    manager
        .add(LogLevel::new(
            handle.clone(),
            manager.cluster().unwrap(),
            settings.clone(),
        ))
        .unwrap();
    let running = run(&manager);
    let client = manager.client().unwrap();
    let map = |filter: &str, other: u32| -> ConfigMap {
        let map = json!({
            "metadata": {"name": "settings", "namespace": fixture.namespace()},
            "data": {"log-filter": filter, "other": other.to_string()},
        });
        serde_json::from_value(map).unwrap()
    };
    let (invalid, changed) = (
        "invalid log filter; keeping the current one",
        "log filter changed",
    );
    let is_about = |line: &Value| line["map"] == settings.to_string();
    client.create(&map("loud=very", 0)).await.unwrap();
    saying(invalid, is_about).await;
    // The log shows this filter in another order.
    for filter in ["loud=very", "warn,steersman=trace"] {
        for other in 1..6 {
            client.update(&map(filter, other)).await.unwrap();
        }
    }
    saying(changed, is_about).await;
    handle.set_filter("error").unwrap();
    client.update(&map("warn,steersman=trace", 6)).await.unwrap();
    client.update(&map("debug", 6)).await.unwrap();
    until(|| handle.filter() == "debug").await;
    running.stop().await.unwrap();
    let lines = LINES.get().unwrap().borrow().clone();
    let count = |message: &str| {
        let said = lines.iter().filter(|line| is_about(line));
        said.filter(|line| line["msg"] == message).count()
    };
    assert_eq!((count(invalid), count(changed)), (1, 2));
}

// D9, D33
#[steersman_testing::test]
async fn partially_degraded_and_degraded_are_two_states_in_the_log(fixture: Fixture) {
    logs();
    let (name, clock) = (unique(&fixture, "worsening"), TestClock::new());
    let manager = Manager::builder()
        .without_cluster()
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let (standing, told) = watch::channel(RunnableStatus::Ready);
    let runnable = run_fn(name.clone(), move |cx: RunContext| {
        let mut told = told.clone();
        async move {
            while !cx.stop().is_requested() {
                cx.set_status(told.borrow_and_update().clone());
                tokio::select! {
                    _ = cx.stop().requested() => {}
                    _ = told.changed() => {}
                }
            }
            Ok::<_, BoxError>(())
        }
    });
    manager.add(runnable).unwrap();
    let running = run(&manager);
    let becomes = async |next: &RunnableStatus, lasts: Duration| {
        standing.send_replace(next.clone());
        stands(&manager, &name, |now| now == next).await;
        clock.advance(lasts);
    };
    let reason = "the server answers 500".to_owned();
    let (partially_degraded, degraded) = (
        RunnableStatus::PartiallyDegraded {
            reason: reason.clone(),
        },
        RunnableStatus::Degraded { reason },
    );
    let (long, short) = (Duration::from_secs(5), Duration::from_secs(1));
    said_of(&name, "runnable ready").await;
    becomes(&partially_degraded, long).await;
    said_of(&name, "runnable partially degraded").await;
    // Over before it is worth a warning.
    becomes(&degraded, short).await;
    becomes(&partially_degraded, long).await;
    becomes(&degraded, long).await;
    said_of(&name, "runnable degraded").await;
    becomes(&partially_degraded, short).await;
    becomes(&RunnableStatus::Ready, short).await;
    running.stop().await.unwrap();
    let expected = [
        ("info", "runnable ready"),
        ("warn", "runnable partially degraded"),
        ("warn", "runnable degraded"),
        ("warn", "runnable partially degraded"),
        ("info", "runnable ready"),
    ];
    assert_eq!(visible(&name), said(&expected));
}

// D24
#[steersman_testing::test]
async fn a_reconcile_that_panics_is_logged_with_the_message_and_the_next_try(fixture: Fixture) {
    logs();
    let manager = manager_of(cluster(&fixture).await).await;
    let name = unique(&fixture, "panicking");
    let reconciler = reconcile_fn(async |_: ObjectKey, cx: Context| {
        assert!(cx.attempt() > 1, "out of order");
        Ok::<_, BoxError>(Action::await_change())
    });
    let controller = Controller::<ObjectKey>::named(&name)
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(&manager);
    controller.enqueue(ObjectKey::new("shop", "a"));
    let retried = "reconcile panicked; retrying";
    let retried = line(&name, |line| line["msg"] == retried).await;
    let hook = line(&name, |line| line["msg"] == "panicked").await;
    for line in [&retried, &hook] {
        assert_eq!(line["panic"], "out of order", "{line}");
        assert_eq!(line["key"], "shop/a", "{line}");
    }
    assert_eq!(retried["reconcile_id"], hook["reconcile_id"]);
    assert!(retried["next_try"].is_string() && hook["location"].is_string());
    running.stop().await.unwrap();
}

// D24
#[steersman_testing::test]
async fn a_wrong_ca_is_one_warning(fixture: Fixture) {
    logs();
    // The proxy has a certificate of its own, which the CA of the server did not sign.
    let proxy = fixture.proxy().await;
    let name = unique(&fixture, "untrusting");
    let mut config = fixture.endpoint().config(fixture.admin()).unwrap();
    config.cluster_url = proxy.endpoint().config(fixture.admin()).unwrap().cluster_url;
    let untrusting = managed::cluster_builder(&fixture, "default").config(config);
    let manager = Manager::builder()
        .cluster(untrusting.build().await.unwrap())
        .build()
        .await
        .unwrap();
    Controller::of::<ConfigMap>(&name)
        .add_to(&manager, Log::new())
        .unwrap();
    let running = run(&manager);
    let warning = said_of(&name, "runnable degraded").await;
    assert!(
        warning["reason"].as_str().unwrap().contains("certificate"),
        "{warning}"
    );
    running.stop().await.unwrap();
    assert_eq!(visible(&name), said(&[("warn", "runnable degraded")]));
}
