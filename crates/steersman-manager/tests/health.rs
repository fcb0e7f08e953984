// SPDX-License-Identifier: Apache-2.0
//! What probes are told, to the byte.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use steersman_controller::{BoxError, Needs, RunContext, Standing, run_fn};
use steersman_manager::{Checks, Manager, Routes, Unready};
use support::{HERE, Running, get};

/// Servers of `/healthz` and `/readyz`.
fn probes() -> (Checks, Checks, Running) {
    let (healthz, readyz) = (Checks::new(), Checks::new());
    let mut routes = Routes::new();
    healthz.mount(&mut routes, "/healthz").unwrap();
    readyz.mount(&mut routes, "/readyz").unwrap();
    (healthz, readyz, Running::of(routes))
}

fn pass(checks: &Checks, name: &str) {
    checks
        .add(name, || async { Ok::<(), Unready>(()) })
        .unwrap()
        .forever();
}

fn fail(checks: &Checks, name: &str) {
    checks.add_sync(name, || Err("blech")).unwrap().forever();
}

// R65, R66
#[tokio::test]
async fn when_all_is_well_the_answer_is_ok() {
    let (healthz, readyz, probes) = probes();
    pass(&healthz, "ok1");
    pass(&readyz, "ok2");
    for path in [
        "/healthz",
        "/healthz/",
        "/readyz",
        "/readyz/",
        "/healthz/ok1",
        "/readyz/ok2/",
    ] {
        let reply = probes.get(path).await;
        assert_eq!(reply.parts(), (200, "ok"), "{path}");
        assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
}

// R65
#[tokio::test]
async fn guarantee_1_a_verbose_answer_names_the_checks_in_order() {
    let (healthz, _, probes) = probes();
    pass(&healthz, "ok2");
    pass(&healthz, "ok1");
    let reply = probes.get("/healthz?verbose").await;
    let expected = "[+]ok1 ok\n[+]ok2 ok\nhealthz check passed\n";
    assert_eq!(reply.parts(), (200, expected));
    assert_eq!(
        probes.get("/healthz/?verbose=true").await.parts(),
        (200, expected)
    );
}

// R65, R66
#[tokio::test]
async fn guarantee_2_a_failing_check_is_named_and_its_reason_withheld() {
    let (healthz, readyz, probes) = probes();
    for checks in [&healthz, &readyz] {
        pass(checks, "ok1");
        fail(checks, "bad1");
    }
    let expected = "[-]bad1 failed: reason withheld\n[+]ok1 ok\nhealthz check failed\n";
    for path in ["/healthz", "/readyz", "/readyz?verbose"] {
        assert_eq!(probes.get(path).await.parts(), (500, expected), "{path}");
    }
}

// R65, R66
#[tokio::test]
async fn one_check_is_asked_by_its_path_and_gives_its_reason() {
    let (healthz, readyz, probes) = probes();
    fail(&healthz, "bad1");
    let lost = || Err(io::Error::other("connection lost"));
    readyz.add_sync("data base", lost).unwrap().forever();
    let reply = probes.get("/healthz/bad1").await;
    assert_eq!(reply.parts(), (500, "internal server error: blech\n"));
    let reply = probes.get("/readyz/data%20base").await;
    assert_eq!(reply.parts(), (500, "internal server error: connection lost\n"));
    for path in ["/healthz/other", "/healthz/ping", "/other"] {
        assert_eq!(
            probes.get(path).await.parts(),
            (404, "404 page not found\n"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn excluded_checks_are_not_asked_and_unknown_ones_are_warned_of() {
    let (healthz, _, probes) = probes();
    let asked = Arc::new(AtomicBool::new(false));
    let ask = Arc::clone(&asked);
    let bad = move || {
        ask.store(true, Ordering::SeqCst);
        Err("blech")
    };
    healthz.add_sync("bad1", bad).unwrap().forever();
    pass(&healthz, "ok1");
    assert_eq!(probes.get("/healthz?exclude=bad1").await.parts(), (200, "ok"));
    let reply = probes
        .get("/healthz?verbose&exclude=bad1&exclude=z&exclude=a%22b")
        .await;
    let expected = "[+]bad1 excluded: ok\n[+]ok1 ok\n\
        warn: some health checks cannot be excluded: no matches for \"a\\\"b\",\"z\"\nhealthz check passed\n";
    assert_eq!(reply.parts(), (200, expected));
    assert!(!asked.load(Ordering::SeqCst));
}

#[tokio::test]
async fn guarantee_4_without_a_check_there_is_ping() {
    let (_, _, probes) = probes();
    assert_eq!(probes.get("/readyz").await.parts(), (200, "ok"));
    assert_eq!(probes.get("/readyz/ping").await.parts(), (200, "ok"));
    let reply = probes.get("/readyz?verbose").await;
    assert_eq!(reply.parts(), (200, "[+]ping ok\nhealthz check passed\n"));
}

// R66
#[tokio::test]
async fn guarantee_3_checks_come_and_go_while_probes_are_answered() {
    let (_, readyz, probes) = probes();
    pass(&readyz, "ok1");
    let bad = readyz.add_sync("bad1", || Err("blech")).unwrap();
    let again = readyz.add_sync("bad1", || Err("other")).unwrap_err();
    assert_eq!(again.name(), "bad1");
    assert_eq!(
        again.to_string(),
        "there is a check `bad1` already: give this one another name, or drop the other one first"
    );
    assert_eq!(probes.get("/readyz").await.status, 500);
    drop(bad);
    assert_eq!(probes.get("/readyz").await.status, 200);
    assert_eq!(probes.get("/readyz/bad1").await.status, 404);
    fail(&readyz, "bad1");
    assert_eq!(probes.get("/readyz").await.status, 500);
}

#[tokio::test]
async fn guarantee_2_readiness_lists_pending_kinds_in_public_while_the_process_is_alive() {
    let (_, readyz, probes) = probes();
    let pending = Arc::new(Mutex::new(vec!["pods/v1", "webs.example.com/v1"]));
    let kinds = Arc::clone(&pending);
    let caches = move || match kinds.lock().unwrap().as_slice() {
        [] => Ok(()),
        pending => Err(Unready::waiting_for(pending)),
    };
    readyz.add_sync("caches", caches).unwrap().forever();
    let expected = "[-]caches failed: waiting for pods/v1, webs.example.com/v1\nhealthz check failed\n";
    assert_eq!(probes.get("/readyz?verbose").await.parts(), (500, expected));
    assert_eq!(probes.get("/readyz").await.parts(), (500, expected));
    let reply = probes.get("/readyz/caches").await;
    let expected = "internal server error: waiting for pods/v1, webs.example.com/v1\n";
    assert_eq!(reply.parts(), (500, expected));
    assert_eq!(probes.get("/healthz").await.parts(), (200, "ok"));

    pending.lock().unwrap().clear();
    assert_eq!(probes.get("/readyz").await.parts(), (200, "ok"));
}

#[tokio::test]
async fn a_public_reason_stays_on_its_line() {
    let (_, readyz, probes) = probes();
    let check = || Err(Unready::public("one\n[+]two ok"));
    readyz.add_sync("one", check).unwrap().forever();
    let expected = "[-]one failed: one [+]two ok\nhealthz check failed\n";
    assert_eq!(probes.get("/readyz").await.parts(), (500, expected));
}

// R65, R66
#[tokio::test]
async fn guarantee_6_a_manager_shows_checks_as_others_do_and_how_all_stand_if_asked_for_more() {
    let manager = Manager::builder()
        .without_cluster()
        .health(HERE)
        .build()
        .await
        .unwrap();
    let sweeper = run_fn("sweeper", async |cx: RunContext| -> Result<(), BoxError> {
        cx.stop().requested().await;
        Ok(())
    });
    manager.add(sweeper.needing(Needs::Nothing)).unwrap();
    let run = manager.run_until(async {
        let is_ready = |standing: &Standing| *standing == Standing::Ready;
        let standings = manager.standings();
        standings
            .when(|all| all.get("sweeper").is_some_and(is_ready))
            .await;
        let probe = async |path| get(manager.addresses().health.unwrap(), path).await;
        let checks = "[+]caches ok\n[+]runnables ok\n[+]warm ok\n";
        assert_eq!(probe("/readyz").await.parts(), (200, "ok"));
        assert_eq!(
            probe("/readyz?verbose").await.parts(),
            (
                200,
                &*format!("{checks}runnable sweeper: ready\nhealthz check passed\n")
            )
        );
        let database = manager.readyz_check("database", || async { Err::<(), _>("blech") });
        let _database = database.unwrap();
        let checks = "[+]caches ok\n[-]database failed: reason withheld\n[+]runnables ok\n[+]warm ok\n";
        assert_eq!(
            probe("/readyz").await.parts(),
            (500, &*format!("{checks}healthz check failed\n"))
        );
        assert_eq!(
            probe("/readyz?verbose").await.parts(),
            (
                500,
                &*format!("{checks}runnable sweeper: ready\nhealthz check failed\n")
            )
        );
        let ping = "[+]ping ok\nhealthz check passed\n";
        assert_eq!(probe("/healthz?verbose").await.parts(), (200, ping));
    });
    run.await.unwrap();
}
