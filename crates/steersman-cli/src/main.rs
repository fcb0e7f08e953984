// SPDX-License-Identifier: Apache-2.0
//! The command `steersman`.

mod args;
mod caretaker;
mod demo;
mod exit;
mod man;
mod replica;
mod serve;
mod server;
mod terminal;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Demo(options) => demo::main(&options),
        Command::Serve(options) => serve::main(&options),
        Command::Completions { shell } => args::completions(shell),
        Command::Man => man::main(),
        Command::Replica(options) => replica::main(&options),
        Command::Caretaker => caretaker::main(),
    };
    exit::code(outcome)
}
