// SPDX-License-Identifier: Apache-2.0
//! A replica in the benchmark `failover`: one controller of ConfigMaps that does nothing.

#![allow(clippy::print_stderr, reason = "stderr is for people")]

use std::{process::ExitCode, sync::Once};

use bench_failover::{DURATION, RENEW, RETRY};
use bench_protocol::participant::{lifeline, say, variable};
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_core::Action;
use steersman_runtime::{
    BoxError, Context, Controller, Election, Manager, Request, RunnableStatus, reconcile_fn,
};
use tokio::sync::watch;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let _driver = lifeline();
    let election = Election::new(variable("BENCH_LEASE"))
        .namespace("default")
        .lease_duration(DURATION)
        .renew_deadline(RENEW)
        .retry_period(RETRY);
    let manager = Manager::builder().leader_election(election).build().await?;
    let (readying, ready) = watch::channel(false);
    static FIRST: Once = Once::new();
    let reconcile = reconcile_fn(move |_: Request, _: Context| {
        let mut ready = ready.clone();
        async move {
            // The driver expects the words in this order. The other side lives as long as the process.
            let _ = ready.wait_for(|ready| *ready).await;
            FIRST.call_once(|| say("reconciled"));
            Ok::<_, BoxError>(Action::await_change())
        }
    });
    let is_warm = variable("BENCH_MODE") == "warm";
    let controller = Controller::of::<ConfigMap>("maps");
    let controller = if is_warm { controller.warm() } else { controller };
    controller.add_to(&manager, reconcile)?;
    let announce = async {
        if is_warm {
            let standings = manager.statuses();
            let is_ready = |all: Option<&RunnableStatus>| all.is_some_and(RunnableStatus::is_ready);
            standings.when(|all| is_ready(all.get("maps"))).await;
        }
        say("ready");
        readying.send_replace(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        ended = manager.run() => Ok(ended?),
        () = announce => Ok(()),
    }
}
