// SPDX-License-Identifier: Apache-2.0
//! The demo does what it prints, and leaves nothing behind.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod command;

use std::{collections::BTreeMap, net::TcpListener, process::Command};

use command::{Place, eventually, said};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Measurements of each step and of the whole demo.
const MEASURED: [(&str, &[&str]); 8] = [
    ("start", &["leads", "warm"]),
    ("converge", &["applied_to_children", "applied_to_ready"]),
    ("restore", &["deleted_to_restored"]),
    (
        "conditional",
        &[
            "installed_to_ready",
            "uninstalled_to_dormant",
            "first_kind_meanwhile",
        ],
    ),
    ("kill", &["killed_to_taken", "taken_to_first_write", "replaced"]),
    ("hand_over", &["told_to_taken", "told_to_written"]),
    ("clusters", &["engaged", "disengaged"]),
    ("demo", &["total"]),
];

#[test]
fn guarantee_1_every_step_succeeds_and_is_measured() {
    let place = Place::new();
    let mut command = place.command(&["demo", "--fast", "--json"]);
    // The way to this machine itself leads over no proxy.
    let output = command.env("HTTPS_PROXY", "http://127.0.0.1:1").output().unwrap();
    let story = said(&output);
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert!(place.leftovers().is_empty() && place.processes().is_empty());

    let mut measured: BTreeMap<(String, String), Value> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| value[field].as_str().unwrap().to_owned();
        measured.insert((text("step"), text("measure")), value.clone());
    }
    for (step, names) in MEASURED {
        for name in names {
            let value = &measured[&(step.to_owned(), (*name).to_owned())];
            let [half, most, all] = ["p50", "p90", "max"].map(|field| value[field].as_f64().unwrap());
            assert!(0.0 < half && half <= most && most <= all, "{value}");
        }
    }
    assert_eq!(
        measured.len(),
        MEASURED.iter().map(|(_, names)| names.len()).sum::<usize>()
    );
    // A candidate takes the lease only after it has expired by its own clock.
    let taken = &measured[&("kill".to_owned(), "killed_to_taken".to_owned())];
    assert!(taken["p50"].as_f64().unwrap() > 2_000.0, "{taken}");

    // Progress is written to standard error, without colours outside of a terminal, and mentions the shorter lease.
    assert!(
        story.contains("The lease is shortened to 3 s for the show"),
        "{story}"
    );
    for number in 1..=7 {
        assert!(story.contains(&format!("{number}/7  ")), "{story}");
    }
    assert!(!story.contains('\x1b'), "{story}");
}

#[test]
fn guarantee_2_names_a_failed_step() {
    let place = Place::new();
    let mut demo = place.start(&["demo", "--fast"]);
    demo.says("3/7");
    // Without replicas, no child is created again.
    let none_is_left = || {
        let mut replicas = place.processes();
        replicas.retain(|(_, line)| line.contains(" replica "));
        for (id, _) in &replicas {
            // The demo may have ended it itself by now.
            let _ = kill_process(Pid::from_raw(*id).unwrap(), Signal::KILL);
        }
        replicas.is_empty()
    };
    eventually(none_is_left, || {
        "there are replicas that cannot be killed".to_owned()
    });
    let error = demo.complains("` failed");
    assert!(error.contains("error: step `"), "{error}");
    demo.complains("because: ");
    assert_eq!(demo.ended().code(), Some(1));
    place.is_left_clean();
}

#[test]
fn guarantee_3_killing_the_demo_at_any_moment_leaves_no_process_and_no_file() {
    const WAITING: &str = "Your turn";
    for moment in [
        "Steersman: ",
        "kubeconfig: ",
        "1/7",
        "2/7",
        "both are warm",
        "4/7",
        "5/7",
        "6/7",
        "7/7",
        WAITING,
    ] {
        let place = Place::new();
        // To wait is the one thing that it does not do if it is to be fast.
        let arguments: &[&str] = if moment == WAITING {
            &["demo"]
        } else {
            &["demo", "--fast"]
        };
        let mut demo = place.start(arguments);
        demo.says(moment);
        demo.send(Signal::KILL);
        demo.ended();
        place.is_left_clean();
    }
}

#[test]
fn guarantee_3_ctrl_c_ends_all_processes_before_the_demo() {
    let place = Place::new();
    let mut demo = place.start(&["demo"]);
    demo.says("2/7");
    demo.send(Signal::INT);
    assert_eq!(demo.ended().code(), Some(130));
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
    assert!(place.processes().is_empty(), "{:?}", place.processes());
}

#[test]
fn a_port_in_use_is_an_error_with_advice() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let place = Place::new();
    let output = place.run(&["demo", "--fast", "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    let error = said(&output);
    assert!(
        error.contains(&format!("127.0.0.1:{port} is taken by another program")),
        "{error}"
    );
    assert!(error.contains("--port"), "{error}");
    assert!(place.leftovers().is_empty());
}

#[test]
fn a_missing_directory_is_an_error_with_advice() {
    let place = Place::new();
    let mut command = place.command(&["demo", "--fast"]);
    let output = command.env("TMPDIR", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = said(&output);
    assert!(
        error.contains("/nowhere") && error.contains("set TMPDIR"),
        "{error}"
    );
}

/// The demo that waits is a cluster like any other.
#[test]
fn kubectl_works_with_a_waiting_demo() {
    let Some(kubectl) = steersman_assets::find().ok().and_then(|assets| assets.kubectl()) else {
        steersman_testing::skip_without_tool(
            "the demo with kubectl",
            "kubectl is not built; run `cargo xtask kube`",
        );
        return;
    };
    let place = Place::new();
    let mut demo = place.start(&["demo"]);
    let kubeconfig = demo.says("kubeconfig: ").replace("kubeconfig: ", "");
    demo.says("Your turn");
    let run = |arguments: &[&str]| {
        let output = Command::new(&kubectl)
            .args(["--kubeconfig", &kubeconfig])
            .args(arguments)
            .env("HOME", place.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let webs = run(&["get", "webs"]);
    let first = webs.lines().find(|line| line.starts_with("web-01")).unwrap();
    assert_eq!(first.split_whitespace().nth(1), Some("True"), "{webs}");
    let mine = place.file(
        "mine.yaml",
        "{apiVersion: examples.steersman.dev/v1, kind: Web, metadata: {name: mine}, spec: {page: hi, replicas: 3}}",
    );
    run(&["apply", "-f", mine.to_str().unwrap()]);
    run(&["wait", "--for=condition=Ready", "web/mine", "--timeout=30s"]);
    run(&["delete", "configmap", "mine"]);
    run(&["wait", "--for=create", "configmap/mine", "--timeout=30s"]);
    run(&["delete", "web", "mine"]);
    run(&["wait", "--for=delete", "deployment/mine", "--timeout=30s"]);
    demo.send(Signal::INT);
    assert_eq!(demo.ended().code(), Some(0));
    assert!(place.leftovers().is_empty());
}
