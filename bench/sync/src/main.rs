// SPDX-License-Identifier: Apache-2.0
//! `bench-sync [--quick] who=PATH…`: the first sync of 30,000 Pods from a real API server, and a forced relist.
//!
//! Each participant runs twice: with `BENCH_MODE=sync` straight at the server, with `BENCH_MODE=relist` through a
//! fault proxy, which answers 410 to a watch. `bench/README.md` has the protocol.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

mod etcd;

use std::{
    error::Error,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use bench_protocol::{
    driver::{Participant, Plan},
    objects,
};
use steersman_testing::{
    Endpoint, FaultProxy, RealServer,
    proxy::{Cut, Exchange, Fault, Matching},
};
use tokio::runtime::Runtime;

use etcd::Etcd;

type Failure = Box<dyn Error + Send + Sync>;

const PODS: usize = 30_000;
const PODS_QUICK: usize = 2_000;

/// Repetitions of the first sync: the memory of Go depends on the time of its last garbage collection.
const RUNS: usize = 3;

/// Idle time before the steady memory is measured.
const SETTLE: Duration = Duration::from_secs(3);
const SETTLE_QUICK: Duration = Duration::from_millis(500);

/// Timeout for the start of a forced relist.
const RELIST_LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let plan = Plan::from_arguments()?;
    let runtime = Runtime::new()?;
    let stage = runtime.block_on(Stage::set(if plan.quick { PODS_QUICK } else { PODS }))?;
    let settle = if plan.quick { SETTLE_QUICK } else { SETTLE };
    for participant in &plan.participants {
        for run in 1..=if plan.quick { 1 } else { RUNS } {
            eprintln!("{}: first sync, {run}", participant.who);
            stage.sync(participant)?;
        }
        eprintln!("{}: relist", participant.who);
        stage.relist(participant, settle, &runtime)?;
    }
    Ok(())
}

/// The server with its Pods.
struct Stage {
    server: RealServer,
    etcd: Etcd,
    dir: tempfile::TempDir,
    count: usize,
}

impl Stage {
    async fn set(count: usize) -> Result<Self, Failure> {
        eprintln!("starting a real API server");
        let server = RealServer::builder()
            .start()
            .await
            .map_err(|error| with_causes(&error))?;
        let etcd = Etcd::connect(server.dir()).await?;
        let json = |index: usize| {
            let (namespace, name) = objects::pod_key(index);
            (namespace, name, objects::pod(index).to_string())
        };
        etcd.put_pods(count, json, |done| eprintln!("  {done} of {count} Pods"))
            .await?;
        let stage = Self {
            server,
            etcd,
            dir: tempfile::tempdir()?,
            count,
        };
        stage.warm_up().await?;
        Ok(stage)
    }

    /// Reads all Pods once: the first participant shall find the server as the others do.
    async fn warm_up(&self) -> Result<(), Failure> {
        let client = self.server.endpoint().client(self.server.admin())?;
        let request = http::Request::get("/api/v1/pods").body(Vec::new())?;
        let bytes = client.request_text(request).await?.len();
        eprintln!(
            "  {} Pods are served, {} bytes each",
            self.count,
            bytes / self.count
        );
        Ok(())
    }

    fn kubeconfig(&self, name: &str, endpoint: &Endpoint) -> Result<PathBuf, Failure> {
        let path = self.dir.path().join(name);
        fs::write(&path, endpoint.kubeconfig(self.server.admin()))?;
        Ok(path)
    }

    fn sync(&self, participant: &Participant) -> Result<(), Failure> {
        let kubeconfig = self.kubeconfig("direct", self.server.endpoint())?;
        let count = self.count.to_string();
        let running = participant.start("sync", &told("sync", &kubeconfig, &count))?;
        Ok(running.finish()?)
    }

    fn relist(&self, participant: &Participant, settle: Duration, runtime: &Runtime) -> Result<(), Failure> {
        let proxy = runtime.block_on(FaultProxy::start(self.server.endpoint()))?;
        let kubeconfig = self.kubeconfig("proxy", proxy.endpoint())?;
        let count = self.count.to_string();
        let (namespace, name) = objects::pod_key(self.count);
        let marker = format!("{namespace}/{name}");
        let mut told = told("relist", &kubeconfig, &count).to_vec();
        told.push(("BENCH_MARKER", marker.as_ref()));
        let mut running = participant.start("sync", &told)?;
        running.hears("synced")?;
        thread::sleep(settle);
        running.say("relist")?;
        running.hears("armed")?;
        runtime.block_on(self.force_relist(&proxy))?;
        let pod = objects::pod(self.count).to_string();
        runtime.block_on(self.etcd.put_pod(&namespace, &name, &pod))?;
        running.finish()?;
        runtime.block_on(self.etcd.delete_pod(&namespace, &name))
    }

    /// Ends the watch, says 410 to the next, and returns when all Pods are on their way once more.
    async fn force_relist(&self, proxy: &FaultProxy) -> Result<(), Failure> {
        let watching = |since: &[Exchange]| {
            let mut watches = since.iter().filter(|exchange| exchange.is_watch());
            watches.any(|exchange| exchange.is_open() && exchange.status.is_some())
        };
        let relisted = async {
            proxy.wait_for(|all| watching(all).then_some(())).await;
            let seen = proxy.exchanges().len();
            let watch = Matching::watches().path("/pods");
            let gone = proxy.inject(watch.clone().first(1), Fault::error_event(410));
            proxy.cut(&watch, Cut::Clean);
            gone.hit().await;
            // A streaming list is a watch that has begun; after a list in pages, a watch begins.
            proxy
                .wait_for(|all| {
                    let since = &all[seen..];
                    let listed = since.iter().any(|exchange| {
                        exchange.method == "GET"
                            && exchange.path.ends_with("/pods")
                            && (!exchange.is_watch() || exchange.query.contains("sendInitialEvents=true"))
                    });
                    (listed && watching(since)).then_some(())
                })
                .await;
        };
        tokio::time::timeout(RELIST_LIMIT, relisted)
            .await
            .map_err(|_| "no list came after the watch was told 410".into())
    }
}

fn told<'a>(mode: &'a str, kubeconfig: &'a Path, count: &'a str) -> [(&'static str, &'a OsStr); 3] {
    [
        ("BENCH_MODE", mode.as_ref()),
        ("KUBECONFIG", kubeconfig.as_ref()),
        ("BENCH_N", count.as_ref()),
    ]
}

fn with_causes(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
