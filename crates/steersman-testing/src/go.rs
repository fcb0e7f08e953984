// SPDX-License-Identifier: Apache-2.0
//! Go programs that tests run for comparison.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::skip_without_tool;

/// Builds the Go module in `source` to the program `output`, with the flags of the real server's build, so that much of
/// it is already in Go's cache.
///
/// Returns `None`, and prints the reason, if Go is not installed or cannot build it (Go is too old, or a download
/// fails). The test then skips the part that needs the program.
///
/// # Panics
/// When the build fails and `CI` is set: a build server must not skip tests.
#[must_use]
pub fn go_program(source: &Path, output: &Path) -> Option<PathBuf> {
    match build(Path::new("go"), source, output) {
        Ok(()) => Some(output.to_path_buf()),
        Err(reason) => {
            skip_without_tool("a program in Go", &reason);
            None
        }
    }
}

fn build(go: &Path, source: &Path, output: &Path) -> Result<(), String> {
    let built = Command::new(go)
        .args(["build", "-o"])
        .arg(output)
        .arg(".")
        .current_dir(source)
        .env("GOFLAGS", "-trimpath -buildvcs=false")
        .env("GOWORK", "off")
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("there is no Go ({error})"))?;
    if built.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&built.stderr);
    Err(format!(
        "`go build` in {} failed with {}\n{said}",
        source.display(),
        built.status
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_failing_go_toolchain_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let build = |go: &str| build(Path::new(go), dir.path(), &dir.path().join("out"));
        let missing = build("/nowhere/go").unwrap_err();
        assert!(missing.starts_with("there is no Go ("), "{missing}");
        let broken = build("false").unwrap_err();
        assert!(broken.contains("failed with exit status: 1"), "{broken}");
    }
}
