// SPDX-License-Identifier: Apache-2.0
//! `bench-conditional [--quick]`: how soon a conditional controller follows its kind, on the embedded API server and on the
//! real one, and what is left in its process of many installs.

#![allow(clippy::print_stderr, reason = "people want to see how far it is")]

mod cycles;
mod operator;
mod times;
mod widgets;

use std::process::ExitCode;

use bench_stage::{SERVE, Server};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [SERVE] => on_a_runtime(bench_stage::serve()),
        [cycles::WORD] => on_a_runtime(cycles::operate()),
        [] => on_a_runtime(run(false)),
        ["--quick"] => on_a_runtime(run(true)),
        _ => Err("usage: bench-conditional [--quick]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn on_a_runtime(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(work)
}

async fn run(quick: bool) -> Result<(), String> {
    let rounds = if quick { 5 } else { 100 };
    let embedded = Server::embedded().await?;
    times::run(&embedded, rounds).await?;
    cycles::run(&embedded, if quick { 10 } else { 500 }).await?;
    drop(embedded);
    match Server::real().await {
        Ok(real) => {
            times::run(&real, rounds).await?;
            cycles::run(&real, if quick { 2 } else { 20 }).await
        }
        Err(error) => {
            eprintln!("the real server is left out: {error}");
            Ok(())
        }
    }
}

/// Any error, as text.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
