// SPDX-License-Identifier: Apache-2.0
//! Responses to probes, byte for byte.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use steersman_endpoints::{CheckError, Checks, Routes};

use crate::support::Running;

/// Starts a server of `/healthz` and `/readyz`.
fn probes() -> (Checks, Checks, Running) {
    let (healthz, readyz) = (Checks::new(), Checks::new());
    let mut routes = Routes::new();
    healthz.mount(&mut routes, "/healthz").unwrap();
    readyz.mount(&mut routes, "/readyz").unwrap();
    (healthz, readyz, Running::of(routes))
}

fn pass(checks: &Checks, name: &str) {
    checks
        .add(name, || async { Ok::<(), CheckError>(()) })
        .unwrap()
        .detach();
}

fn fail(checks: &Checks, name: &str) {
    checks.add_sync(name, || Err("blech")).unwrap().detach();
}

// R65, R66
#[tokio::test]
async fn guarantee_7_responds_ok_with_and_without_a_slash_at_the_end() {
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
async fn guarantee_1_a_verbose_response_lists_the_checks_by_name() {
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
async fn guarantee_2_the_list_names_a_failed_check_and_withholds_the_reason() {
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
async fn the_path_of_a_check_returns_its_reason() {
    let (healthz, readyz, probes) = probes();
    fail(&healthz, "bad1");
    let lost = || Err(io::Error::other("connection lost"));
    readyz.add_sync("data base", lost).unwrap().detach();
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
async fn excluded_checks_do_not_run_and_unknown_names_get_a_warning() {
    let (healthz, _, probes) = probes();
    let called = Arc::new(AtomicBool::new(false));
    let calling = Arc::clone(&called);
    let bad = move || {
        calling.store(true, Ordering::SeqCst);
        Err("blech")
    };
    healthz.add_sync("bad1", bad).unwrap().detach();
    pass(&healthz, "ok1");
    assert_eq!(probes.get("/healthz?exclude=bad1").await.parts(), (200, "ok"));
    let reply = probes
        .get("/healthz?verbose&exclude=bad1&exclude=z&exclude=a%22b")
        .await;
    let expected = "[+]bad1 excluded: ok\n[+]ok1 ok\n\
        warn: some health checks cannot be excluded: no matches for \"a\\\"b\",\"z\"\nhealthz check passed\n";
    assert_eq!(reply.parts(), (200, expected));
    assert!(!called.load(Ordering::SeqCst));
}

#[tokio::test]
async fn guarantee_4_without_checks_the_list_has_ping() {
    let (_, _, probes) = probes();
    assert_eq!(probes.get("/readyz").await.parts(), (200, "ok"));
    assert_eq!(probes.get("/readyz/ping").await.parts(), (200, "ok"));
    let reply = probes.get("/readyz?verbose").await;
    assert_eq!(reply.parts(), (200, "[+]ping ok\nhealthz check passed\n"));
}

// R66
#[tokio::test]
async fn guarantee_3_checks_can_be_added_and_removed_at_any_time() {
    let (_, readyz, probes) = probes();
    pass(&readyz, "ok1");
    let bad = readyz.add_sync("bad1", || Err("blech")).unwrap();
    let again = readyz.add_sync("bad1", || Err("other")).unwrap_err();
    assert_eq!(again.name(), "bad1");
    assert_eq!(
        again.to_string(),
        "cannot add health check `bad1`: a check of this name exists; choose another name or remove the other check"
    );
    assert_eq!(probes.get("/readyz").await.status, 500);
    drop(bad);
    assert_eq!(probes.get("/readyz").await.status, 200);
    assert_eq!(probes.get("/readyz/bad1").await.status, 404);
    fail(&readyz, "bad1");
    assert_eq!(probes.get("/readyz").await.status, 500);
}

#[tokio::test]
async fn guarantee_2_the_list_shows_a_public_reason() {
    let (_, readyz, probes) = probes();
    let pending = Arc::new(Mutex::new(vec!["pods/v1", "webs.example.com/v1"]));
    let kinds = Arc::clone(&pending);
    let caches = move || match kinds.lock().unwrap().as_slice() {
        [] => Ok(()),
        pending => Err(CheckError::waiting_for(pending)),
    };
    readyz.add_sync("caches", caches).unwrap().detach();
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
async fn a_public_reason_has_one_line() {
    let (_, readyz, probes) = probes();
    let check = || Err(CheckError::public("one\n[+]two ok"));
    readyz.add_sync("one", check).unwrap().detach();
    let expected = "[-]one failed: one [+]two ok\nhealthz check failed\n";
    assert_eq!(probes.get("/readyz").await.parts(), (500, expected));
}

#[tokio::test]
async fn guarantee_5_a_hidden_check_runs_only_by_its_path() {
    let (_, readyz, probes) = probes();
    pass(&readyz, "ok1");
    fail(&readyz, "bad1");
    readyz.hide("bad1");
    let reply = probes.get("/readyz?verbose").await;
    assert_eq!(reply.parts(), (200, "[+]ok1 ok\nhealthz check passed\n"));
    assert_eq!(probes.get("/readyz/bad1").await.status, 500);
}

#[tokio::test]
async fn guarantee_6_details_are_listed_below_the_checks_if_verbose() {
    let (_, readyz, probes) = probes();
    pass(&readyz, "ok1");
    readyz.add_details(|| vec!["cluster far: degraded:\ntimeout".to_owned()]);
    assert_eq!(probes.get("/readyz").await.parts(), (200, "ok"));
    let reply = probes.get("/readyz?verbose").await;
    let expected = "[+]ok1 ok\ncluster far: degraded: timeout\nhealthz check passed\n";
    assert_eq!(reply.parts(), (200, expected));
    fail(&readyz, "bad1");
    let expected = "[-]bad1 failed: reason withheld\n[+]ok1 ok\nhealthz check failed\n";
    assert_eq!(probes.get("/readyz").await.parts(), (500, expected));
}
