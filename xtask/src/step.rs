// SPDX-License-Identifier: Apache-2.0
//! Steps of a task: announced, run, timed.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

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

/// Where cargo puts what it builds: this program is there as well. A variable or a configuration file may have chosen it.
pub(crate) fn target() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    target_with(&program).map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// The directory of a program that is `debug/xtask` in it, or `debug/deps/xtask-…` if it is a test.
fn target_with(program: &Path) -> Option<&Path> {
    let dir = program.parent()?;
    let profile = if dir.ends_with("deps") { dir.parent()? } else { dir };
    profile.parent()
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
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_where_this_program_is() {
        for program in [
            "debug/xtask",
            "release/xtask",
            "debug/deps/xtask-0123456789abcdef",
        ] {
            let program = Path::new("/elsewhere/built").join(program);
            assert_eq!(target_with(&program), Some(Path::new("/elsewhere/built")));
        }
        // Whatever chose the directory, it is the one that this test was built into.
        assert!(env::current_exe().unwrap().starts_with(target()));
        assert!(target().join("debug").is_dir() || target().join("release").is_dir());
    }
}
