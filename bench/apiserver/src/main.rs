// SPDX-License-Identifier: Apache-2.0
//! `bench-apiserver [--quick]`: the embedded API server beside the real one, each as a separate process, and the
//! embedded one within this process.
//!
//! `bench-apiserver --serve` is that process: it serves until its stdin ends.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

mod cases;
mod inside;
mod subject;

use std::process::ExitCode;

use cases::Counts;
use subject::Subject;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let counts = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [bench_stage::SERVE] => return finish(on_one_thread(bench_stage::serve())),
        ["--inside", quick] => return finish(on_one_thread(inside::run(Counts::new(quick == "quick")))),
        [] => Counts::new(false),
        ["--quick"] => Counts::new(true),
        _ => return finish(Err("usage: bench-apiserver [--quick]".to_owned())),
    };
    finish(run(counts))
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn on_one_thread(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(work)
}

fn run(counts: Counts) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // A separate process, so that its memory does not include the other servers.
    let quick = if counts.is_quick() { "quick" } else { "full" };
    let inside = std::process::Command::new(&program)
        .args(["--inside", quick])
        .status();
    match inside {
        Ok(status) if status.success() => {}
        other => return Err(format!("the run within a process failed: {other:?}")),
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let ours = Subject::ours().await?;
        cases::run(&ours, counts).await?;
        drop(ours);
        match Subject::real().await {
            Ok(real) => cases::run(&real, counts).await,
            Err(error) => {
                eprintln!("the real server is left out: {error}");
                Ok(())
            }
        }
    })
}
