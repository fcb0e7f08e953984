// SPDX-License-Identifier: Apache-2.0
//! `bench-reconcile [--quick] who=PATH…`: 100,000 new custom resources by watch, until each was reconciled.
//!
//! Each participant runs once for each mode; `bench/README.md` has the protocol.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

use std::{fs, path::Path, process::ExitCode, sync::Arc};

use bench_events::{Gate, Server, Stream};
use bench_protocol::{
    driver::{Failure, Participant, Plan},
    objects::{gadget, widget},
};

const OBJECTS: usize = 100_000;
const OBJECTS_QUICK: usize = 10_000;

/// The kinds of the modes `idle…`, each of which has a controller, and how many objects each has.
const KINDS: usize = 100;
const FEW: usize = 100;
const MANY: usize = 10_000;
const MANY_QUICK: usize = 1_000;

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
    let count = if plan.quick { OBJECTS_QUICK } else { OBJECTS };
    let dir = tempfile::tempdir().map_err(|error| format!("there is no directory for files: {error}"))?;
    let widgets = Arc::new(Stream::at_once(count, widget));
    let gadgets = Arc::new(Stream::at_once(count, gadget));
    for mode in ["noop", "read", "mapped"] {
        for participant in &plan.participants {
            eprintln!("{}: {mode}", participant.who);
            reconcile(participant, mode, count, (&widgets, &gadgets), dir.path())?;
        }
    }
    let many = if plan.quick { MANY_QUICK } else { MANY };
    // The peers keep a million objects in more memory than people have on their desks.
    for participant in plan.participants.iter().filter(|one| one.who == "steersman") {
        for count in [FEW, many] {
            eprintln!(
                "{}: idle, {count} objects of each of {KINDS} kinds",
                participant.who
            );
            idle(participant, count, dir.path())?;
        }
    }
    Ok(())
}

fn reconcile(
    participant: &Participant,
    mode: &str,
    count: usize,
    (widgets, gadgets): (&Arc<Stream>, &Arc<Stream>),
    dir: &Path,
) -> Result<(), Failure> {
    let gate = Arc::new(Gate::default());
    let later = Arc::new(Stream::Gated(Arc::clone(&gate), Arc::clone(gadgets)));
    let kinds = [
        ("Widget".to_owned(), Arc::clone(widgets)),
        ("Gadget".to_owned(), later),
    ];
    let kubeconfig = serve(kinds, dir)?;
    let n = count.to_string();
    let told = [
        ("BENCH_MODE", mode.as_ref()),
        ("KUBECONFIG", kubeconfig.as_os_str()),
        ("BENCH_N", n.as_ref()),
    ];
    let mut running = participant.start("reconcile", &told)?;
    if mode == "mapped" {
        running.hears("reconciled")?;
        gate.open();
    }
    running.finish()
}

fn idle(participant: &Participant, count: usize, dir: &Path) -> Result<(), Failure> {
    let stream = Arc::new(Stream::at_once(count, widget));
    let kubeconfig = serve(
        (0..KINDS).map(|index| (format!("Widget{index}"), Arc::clone(&stream))),
        dir,
    )?;
    let (n, kinds) = (count.to_string(), KINDS.to_string());
    let told = [
        ("BENCH_MODE", "idle".as_ref()),
        ("KUBECONFIG", kubeconfig.as_os_str()),
        ("BENCH_N", n.as_ref()),
        ("BENCH_KINDS", kinds.as_ref()),
    ];
    participant.start("reconcile", &told)?.finish()
}

fn serve(
    kinds: impl IntoIterator<Item = (String, Arc<Stream>)>,
    dir: &Path,
) -> Result<std::path::PathBuf, Failure> {
    let server = Server::start(kinds).map_err(|error| format!("cannot listen: {error}"))?;
    let path = dir.join("kubeconfig");
    fs::write(&path, server.kubeconfig()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(path)
}
