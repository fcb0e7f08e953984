// SPDX-License-Identifier: Apache-2.0
//! The task runner of this repository: `cargo xtask COMMAND`. Plain Rust, nothing else to install.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to people"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "people want to know how long a step took in real time"
)]

mod bench;
mod kube;
mod lint;
mod soak;
mod step;
mod test;
mod tidy;

use std::{path::PathBuf, process::ExitCode};

const HELP: &str = "\
The tasks of this repository.

    cargo xtask test                              everything that must hold at every commit
    cargo xtask test [--embedded|--real] [FILTER] tests alone: all, or those of one API server
    cargo xtask test --long [--embedded|--real]   those that have a size, as large as requirements say: an hour
    cargo xtask soak [--seeds N] [--seed S] [--embedded|--real]
                                                  two replicas under random faults; 10 seeds from 1 unless you say more
    cargo xtask lint                              formatting, clippy and documentation, warnings denied
    cargo xtask kube                              build or find the real API server, and print where it is
    cargo xtask bench [NAME…] [--quick] [--json] [--save]
                                                  measure, beside others in the same run; --save keeps the table
    cargo xtask tidy [--fix]                      the rules of the tree; --fix writes docs/requirements-tests.md
";

/// Why a task failed, in words for the one who ran it.
type Failure = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", rest @ ..] => test::run(&test::Plan::parse(rest)?),
        ["soak", rest @ ..] => soak::run(&soak::Plan::parse(rest)?),
        ["lint"] => lint::run(),
        ["kube"] => kube::print(),
        ["bench", rest @ ..] => bench::run(&bench::Plan::parse(rest)?),
        ["tidy"] => tidy::run(tidy::Mode::Check),
        ["tidy", "--fix"] => tidy::run(tidy::Mode::Fix),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!(
            "`{}` is not a task; `cargo xtask help` lists them",
            other.join(" ")
        )),
    }
}

/// The top of the checkout.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(PathBuf::from)
        .unwrap_or_default()
}
