// SPDX-License-Identifier: Apache-2.0
//! Steps of a task: prints, runs and times them.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use crate::{Failure, root};

/// Returns a command that runs in the root of the repository.
pub(crate) fn command(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(program.into());
    command.current_dir(root());
    command
}

/// Returns the cargo that runs this program, without the variables that cargo set for this program: build scripts read
/// them, and would run again whenever `cargo xtask` and plain `cargo` alternate.
pub(crate) fn cargo() -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_variables_of_this_package(&mut cargo);
    cargo
}

/// Removes the variables that cargo set for this program.
pub(crate) fn without_variables_of_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if is_of_this_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
}

fn is_of_this_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Returns the target directory, which contains this program. A variable or a configuration file can select it.
pub(crate) fn target() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    target_with(&program).map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// Returns the target directory of a program `debug/xtask`, or of a test `debug/deps/xtask-…`.
fn target_with(program: &Path) -> Option<&Path> {
    let dir = program.parent()?;
    let profile = if dir.ends_with("deps") { dir.parent()? } else { dir };
    profile.parent()
}

/// Prints the name of a step, runs it, and prints its duration.
pub(crate) fn step<T>(name: &str, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    eprintln!("==> {name}");
    let start = Instant::now();
    let result = run()?;
    eprintln!("<== {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}

/// Runs a command to completion and passes its output through.
pub(crate) fn succeed(command: &mut Command) -> Result<(), Failure> {
    let shown = show(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed with {status}")),
        Err(error) => Err(format!("cannot run `{shown}`: {error}")),
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
    fn finds_the_target_directory() {
        for program in [
            "debug/xtask",
            "release/xtask",
            "debug/deps/xtask-0123456789abcdef",
        ] {
            let program = Path::new("/elsewhere/built").join(program);
            assert_eq!(target_with(&program), Some(Path::new("/elsewhere/built")));
        }
        // The directory that this test was built into.
        assert!(env::current_exe().unwrap().starts_with(target()));
        assert!(target().join("debug").is_dir() || target().join("release").is_dir());
    }
}
