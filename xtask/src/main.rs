// SPDX-License-Identifier: Apache-2.0
//! The task runner of this repository: `cargo xtask COMMAND`. It needs no tools besides cargo.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints its results"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "durations of steps are printed in real time"
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
Tasks of this repository.

    cargo xtask test                              all checks of a commit
    cargo xtask test [--embedded|--real] [FILTER] only tests, on both API servers or one of them
    cargo xtask test --long [--embedded|--real]   tests of scale at their full size; takes an hour
    cargo xtask soak [--seeds N] [--seed S] [--embedded|--real]
                                                  two replicas under random faults; default: 10 seeds, from 1
    cargo xtask lint                              formatting, clippy and documentation; warnings are errors
    cargo xtask kube                              find or build the real API server, and print its directory
    cargo xtask bench [NAME…] [--quick] [--json] [--save]
                                                  benchmarks, with other frameworks in the same run; --save writes bench/results
    cargo xtask tidy [--fix]                      checks of the repository; --fix writes docs/requirements-tests.md
";

/// Error message of a task, for the terminal.
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
            "unknown task `{}`; `cargo xtask help` lists the tasks",
            other.join(" ")
        )),
    }
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(PathBuf::from)
        .unwrap_or_default()
}
