// SPDX-License-Identifier: Apache-2.0
//! Steps of a task: announced, run, timed.

use std::{env, ffi::OsString, path::PathBuf, process::Command, time::Instant};

use crate::{Failure, root};

/// A command at the top of the checkout.
pub(crate) fn command(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(program.into());
    command.current_dir(root());
    command
}

/// The cargo that runs this program, without the words that it gave this program about itself: build scripts look at
/// them, and would build half of the tree again whenever `cargo xtask` and plain `cargo` take turns.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if is_of_this_package(&name.to_string_lossy()) {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn is_of_this_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs one step, says what it is before and how long it took after.
pub(crate) fn step<T>(name: &str, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    eprintln!("==> {name}");
    let start = Instant::now();
    let result = run()?;
    eprintln!("<== {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}

/// Runs a command to its end; what it prints is for the people who watch.
pub(crate) fn succeed(command: &mut Command) -> Result<(), Failure> {
    let shown = show(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed with {status}")),
        Err(error) => Err(format!("`{shown}` cannot be run: {error}")),
    }
}

fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
