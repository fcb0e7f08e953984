// SPDX-License-Identifier: Apache-2.0
//! A directory that is removed when the process ends, however it ends.
//!
//! A second process creates the directory and removes it when its standard input is closed, which the kernel does when
//! the first process ends. The second process creates the directory, so that the directory never exists without a
//! process that removes it.
//!
//! # Guarantees
//! 1. After a [`Caretaker`] is dropped, its directory is removed.
//! 2. If the process is killed, the directory is removed soon after.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::exit::{End, Outcome};

/// Prefix of the caretaker's output if it cannot create a directory.
const FAILED: &str = "failed: ";

/// Keeps the directory until it is dropped.
#[derive(Debug)]
pub(crate) struct Caretaker {
    dir: PathBuf,
    child: Child,
}

/// The directory cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaretakerError {
    #[error("cannot run a second copy of this program")]
    Start(#[source] io::Error),
    #[error(
        "cannot create a directory in {}: {reason}; make it writable, or set TMPDIR to a writable directory",
        env::temp_dir().display()
    )]
    Directory { reason: String },
}

impl Caretaker {
    /// Creates the directory, accessible only to this user.
    pub(crate) fn start() -> Result<Self, CaretakerError> {
        let mut child = env::current_exe()
            .and_then(|program| {
                Command::new(program)
                    .arg("caretaker")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    // Ctrl-C in a terminal reaches the foreground group, and the caretaker still has to remove the
                    // directory then.
                    .process_group(0)
                    .spawn()
            })
            .map_err(CaretakerError::Start)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(CaretakerError::Start)?;
        }
        let line = line.trim_end_matches('\n');
        if let Some(reason) = line.strip_prefix(FAILED) {
            // It ends when its input is closed.
            let _ = child.wait();
            let reason = reason.to_owned();
            return Err(CaretakerError::Directory { reason });
        }
        Ok(Self {
            dir: PathBuf::from(line),
            child,
        })
    }

    /// Returns the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Caretaker {
    /// A regular end uses the same way as a crash.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the caretaker process (a hidden subcommand).
pub(crate) fn main() -> Outcome {
    // These signals are for the parent process. When it ends, so does this one.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut stdout = io::stdout();
    let dir = match tempfile::Builder::new().prefix("steersman-").tempdir() {
        Ok(dir) => dir,
        Err(error) => {
            writeln!(stdout, "{FAILED}{error}")?;
            return Ok(End::Done);
        }
    };
    // The directory is removed when the input is closed, even if the parent does not read this line.
    let _ = writeln!(stdout, "{}", dir.path().display());
    let mut nothing = [0; 64];
    let mut stdin = io::stdin().lock();
    while matches!(stdin.read(&mut nothing), Ok(1..)) {}
    remove(dir.keep())
}

/// Removes the directory. A process that ends at the same time can still be writing into it.
fn remove(dir: PathBuf) -> Outcome {
    for _ in 0..100 {
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                thread::sleep(Duration::from_millis(20));
            }
            _ => break,
        }
    }
    drop(dir);
    Ok(End::Done)
}
