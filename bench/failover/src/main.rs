// SPDX-License-Identifier: Apache-2.0
//! `bench-failover [--quick] WHO=PROGRAM…`: how soon a second replica reconciles after the first one was killed or asked to
//! stop, with and without warm-up.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

use std::{ffi::OsStr, path::Path, process::ExitCode, time::Duration};

use bench_failover::DURATION;
use bench_protocol::{
    driver::{Failure, Participant, Plan},
    participant::{Start, Told, percentile, rounded},
};
use bench_stage::{SERVE, Server};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use steersman_testing::{
    FaultProxy,
    proxy::{Fault, Matching},
};

/// So long a replica that does not say when it is ready has to see the lease.
const LOOK: Duration = Duration::from_secs(2);

/// Size of a run.
struct Scale {
    objects: usize,
    /// By this much the proxy delays lists.
    list: Duration,
    rounds: usize,
}

fn main() -> ExitCode {
    let is_server = std::env::args().nth(1).is_some_and(|word| word == SERVE);
    let result = tokio::runtime::Runtime::new()
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            if is_server {
                runtime.block_on(bench_stage::serve())
            } else {
                runtime.block_on(run())
            }
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let plan = Plan::from_arguments()?;
    let scale = if plan.quick {
        Scale {
            objects: 500,
            list: Duration::from_secs(1),
            rounds: 1,
        }
    } else {
        Scale {
            objects: 20_000,
            list: Duration::from_secs(10),
            rounds: 5,
        }
    };
    let server = match Server::real().await {
        Ok(real) => real,
        Err(error) => {
            eprintln!("there is no real server, so the embedded one takes its place: {error}");
            Server::embedded().await?
        }
    };
    fill(&server, scale.objects).await?;
    let proxy = FaultProxy::start(server.endpoint()).await.map_err(words)?;
    let lists = Matching::method("GET").path("/configmaps");
    let _slow = proxy.inject(lists, Fault::delay(scale.list));
    let dir = tempfile::tempdir().map_err(words)?;
    let kubeconfig = dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, proxy.endpoint().kubeconfig(server.admin())).map_err(words)?;
    for participant in &plan.participants {
        for mode in ["warm", "cold"] {
            for (how, signal) in [("killed", Signal::KILL), ("told to stop", Signal::TERM)] {
                let case = Case { mode, how, signal };
                // It waits for words of other processes.
                tokio::task::block_in_place(|| measure(participant, &case, &kubeconfig, &scale))?;
            }
        }
    }
    Ok(())
}

/// The way to end the leader, and the type of the other replica.
struct Case {
    mode: &'static str,
    how: &'static str,
    signal: Signal,
}

fn measure(participant: &Participant, case: &Case, kubeconfig: &Path, scale: &Scale) -> Result<(), Failure> {
    let mut times = Vec::new();
    let whole = Start::now();
    for round in 0..scale.rounds {
        eprintln!("{}, {}, {}: {round}", participant.who, case.mode, case.how);
        let taken = fail_over(participant, case, kubeconfig, round)?;
        times.push(u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    let seconds = |micros: u64| rounded(micros as f64 / 1e6);
    Told::new("failover", &participant.who, scale.objects)
        .row(whole.taken())
        .with("case", format!("{}, {}", case.mode, case.how))
        .with("lease_s", DURATION.as_secs())
        .with("list_s", scale.list.as_secs())
        .with("p50_s", seconds(percentile(&times, 50)))
        .with("most_s", seconds(times.last().copied().unwrap_or_default()))
        .print();
    Ok(())
}

/// From the signal to the leader until the first reconcile of the other one.
fn fail_over(
    participant: &Participant,
    case: &Case,
    kubeconfig: &Path,
    round: usize,
) -> Result<Duration, Failure> {
    let short = if participant.who == "steersman" { "s" } else { "o" };
    let how = if case.signal == Signal::KILL {
        "kill"
    } else {
        "stop"
    };
    let lease = format!("{short}-{}-{how}-{round}", case.mode);
    let told: [(&str, &OsStr); 4] = [
        ("BENCH_MODE", case.mode.as_ref()),
        ("BENCH_N", "0".as_ref()),
        ("BENCH_LEASE", lease.as_ref()),
        ("KUBECONFIG", kubeconfig.as_os_str()),
    ];
    let mut leader = participant.start("failover", &told)?;
    leader.hears("ready")?;
    leader.hears("reconciled")?;
    let mut other = participant.start("failover", &told)?;
    other.hears("ready")?;
    std::thread::sleep(LOOK);
    let pid = i32::try_from(leader.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("a process has no number")?;
    let start = Start::now();
    kill_process(pid, case.signal).map_err(words)?;
    other.hears("reconciled")?;
    Ok(start.taken().wall)
}

async fn fill(server: &Server, objects: usize) -> Result<(), Failure> {
    let client = server.endpoint().client(server.admin()).map_err(words)?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let create = async |number: usize| {
        let map = json!({"metadata": {"name": format!("map-{number}")}, "data": {"value": "1"}});
        let map = serde_json::from_value(map).map_err(words)?;
        let created = maps.create(&Default::default(), &map).await;
        created.map(|_| ()).map_err(words)
    };
    let created = stream::iter(0..objects).map(create).buffer_unordered(16);
    created.try_collect().await
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
