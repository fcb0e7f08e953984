// SPDX-License-Identifier: Apache-2.0
//! `bench-events [--quick] who=PATH…`: 100,000 new custom resources by watch, and the latency to the handler.
//!
//! Each participant runs twice: with `BENCH_MODE=throughput` events come as fast as it takes them, with
//! `BENCH_MODE=latency` they come at a steady pace and say when they were sent. `bench/README.md` has the protocol.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

use std::{fs, process::ExitCode, sync::Arc};

use bench_events::{Server, Stream};
use bench_protocol::{
    driver::{Failure, Plan},
    objects::widget,
};

const EVENTS: usize = 100_000;
const EVENTS_QUICK: usize = 10_000;

/// Events of the run that measures latency.
const PACED: usize = 25_000;
const PACED_QUICK: usize = 5_000;

/// Nanoseconds between two of them: 5,000 a second.
const PACE: u64 = 200_000;

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
    let (events, paced) = if plan.quick {
        (EVENTS_QUICK, PACED_QUICK)
    } else {
        (EVENTS, PACED)
    };
    let modes = [
        ("throughput", events, Stream::at_once(events, widget)),
        ("latency", paced, Stream::paced(paced, PACE, widget)),
    ];
    let dir = tempfile::tempdir().map_err(|error| format!("there is no directory for files: {error}"))?;
    for (mode, count, stream) in modes {
        let widgets = ("Widget".to_owned(), Arc::new(stream));
        let server = Server::start([widgets]).map_err(|error| format!("cannot listen: {error}"))?;
        let path = dir.path().join(mode);
        fs::write(&path, server.kubeconfig()).map_err(|error| format!("cannot write: {error}"))?;
        let n = count.to_string();
        for participant in &plan.participants {
            eprintln!("{}: {mode}", participant.who);
            let told = [
                ("BENCH_MODE", mode.as_ref()),
                ("KUBECONFIG", path.as_os_str()),
                ("BENCH_N", n.as_ref()),
            ];
            participant.start("events", &told)?.finish()?;
        }
    }
    Ok(())
}
