// SPDX-License-Identifier: Apache-2.0
//! `bench-read [--quick] who=PATH…`: typed reads of 30,000 Pods, and a typed mapping function on events.
//!
//! The Pods are those of `bench-sync`, one a line in a file that `BENCH_PODS` names.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    process::ExitCode,
};

use bench_protocol::{
    driver::{Failure, Plan},
    objects,
};

const PODS: usize = 30_000;
const PODS_QUICK: usize = 3_000;

const EVENTS: usize = 100_000;
const EVENTS_QUICK: usize = 10_000;

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
    let (count, events) = if plan.quick {
        (PODS_QUICK, EVENTS_QUICK)
    } else {
        (PODS, EVENTS)
    };
    let dir = tempfile::tempdir().map_err(|error| format!("there is no directory for files: {error}"))?;
    let path = dir.path().join("pods");
    write(&path, count).map_err(|error| format!("cannot write the Pods: {error}"))?;
    let (n, events) = (count.to_string(), events.to_string());
    for participant in &plan.participants {
        eprintln!("{}: reads", participant.who);
        let told = [
            ("BENCH_N", n.as_ref()),
            ("BENCH_EVENTS", events.as_ref()),
            ("BENCH_PODS", path.as_os_str()),
        ];
        participant.start("read", &told)?.finish()?;
    }
    Ok(())
}

fn write(path: &Path, count: usize) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for index in 0..count {
        let mut pod = objects::pod(index);
        pod["metadata"]["resourceVersion"] = (1_000 + index).to_string().into();
        writeln!(out, "{pod}")?;
    }
    out.flush()
}
