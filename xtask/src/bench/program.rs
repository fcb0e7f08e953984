// SPDX-License-Identifier: Apache-2.0
//! Builds the programs of benchmarks.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    Failure, root,
    step::{cargo, command, succeed, target},
};

/// Cargo profile of measured programs.
const MEASURED: &str = "production";
/// Cargo profile of drivers, which builds faster.
const MEASURING: &str = "release";

/// Source of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// A program of this workspace.
    Rust {
        package: &'static str,
        bin: &'static str,
    },
    /// A program of this workspace that runs others.
    Driver { name: &'static str },
    /// A program of the workspace `bench/peers/rust`.
    RustPeer { bin: &'static str },
    /// A Go module in `bench/peers/go`.
    Go { module: &'static str },
}

impl Program {
    /// Builds the program and returns its path.
    pub(super) fn build(&self) -> Result<PathBuf, Failure> {
        match self {
            Self::Rust { package, bin } => build_here(MEASURED, package, bin),
            Self::Driver { name } => build_here(MEASURING, name, name),
            Self::RustPeer { bin } => {
                let output = target().join("peers");
                let mut build = cargo();
                build
                    .args([
                        "build",
                        "--profile",
                        MEASURED,
                        "--quiet",
                        "--locked",
                        "--bin",
                        bin,
                        "--manifest-path",
                        "bench/peers/rust/Cargo.toml",
                        "--target-dir",
                    ])
                    .arg(&output);
                succeed(&mut build)?;
                Ok(output.join(MEASURED).join(bin))
            }
            Self::Go { module } => {
                let output = target().join("bench").join(module);
                let source = root().join("bench/peers/go").join(module);
                let mut build = command("go");
                build
                    .args(["build", "-o"])
                    .arg(&output)
                    .arg(".")
                    .current_dir(source)
                    .env("CGO_ENABLED", "0");
                succeed(&mut build)?;
                Ok(output)
            }
        }
    }

    /// Reports whether the program can be built on this machine.
    pub(super) fn is_possible(&self, go: bool) -> bool {
        go || !matches!(self, Self::Go { .. })
    }
}

fn build_here(profile: &str, package: &str, bin: &str) -> Result<PathBuf, Failure> {
    let words = [
        "build",
        "--profile",
        profile,
        "--quiet",
        "-p",
        package,
        "--bin",
        bin,
    ];
    succeed(cargo().args(words))?;
    Ok(target().join(profile).join(bin))
}

/// Reports whether Go is installed.
pub(super) fn go_is_there() -> bool {
    let version = Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}
