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
mod release_check;
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
    cargo xtask release-check [CHECK…] [--no-verify] [--hosted]
                                                  checks of a release: package, dependencies, msrv, features, docs, deny,
                                                  semver; skips a check whose tool is missing, unless --hosted is set
";

/// Error message of a task, for the terminal.
type Failure = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match Task::parse(&words).and_then(|task| task.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// A task with its options.
#[derive(Debug)]
enum Task {
    Test(test::Plan),
    Soak(soak::Plan),
    Lint,
    Kube,
    Bench(bench::Plan),
    Tidy(tidy::Mode),
    ReleaseCheck(release_check::Plan),
    Help,
}

impl Task {
    fn parse(words: &[&str]) -> Result<Self, Failure> {
        Ok(match words {
            ["test", rest @ ..] => Self::Test(test::Plan::parse(rest)?),
            ["soak", rest @ ..] => Self::Soak(soak::Plan::parse(rest)?),
            ["lint"] => Self::Lint,
            ["kube"] => Self::Kube,
            ["bench", rest @ ..] => Self::Bench(bench::Plan::parse(rest)?),
            ["tidy"] => Self::Tidy(tidy::Mode::Check),
            ["tidy", "--fix"] => Self::Tidy(tidy::Mode::Fix),
            ["release-check", rest @ ..] => Self::ReleaseCheck(release_check::Plan::parse(rest)?),
            [] | ["help" | "--help" | "-h"] => Self::Help,
            other => {
                return Err(format!(
                    "unknown task `{}`; `cargo xtask help` lists the tasks",
                    other.join(" ")
                ));
            }
        })
    }

    fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Test(plan) => test::run(plan),
            Self::Soak(plan) => soak::run(plan),
            Self::Lint => lint::run(),
            Self::Kube => kube::print(),
            Self::Bench(plan) => bench::run(plan),
            Self::Tidy(mode) => tidy::run(*mode),
            Self::ReleaseCheck(plan) => release_check::run(plan),
            Self::Help => {
                print!("{HELP}");
                Ok(())
            }
        }
    }
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(PathBuf::from)
        .unwrap_or_default()
}
