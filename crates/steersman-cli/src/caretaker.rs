// SPDX-License-Identifier: Apache-2.0
//! A directory that is gone with the process that asked for it, however that one dies.
//!
//! A second process makes it and removes it when its standard input ends, which the kernel sees to. The directory is made
//! over there, so that there is no moment in which it exists and nobody is in charge of it.
//!
//! # Guarantees
//! 1. When a [`Caretaker`] was dropped, its directory is gone.
//! 2. If the process is killed, it is gone soon after.

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

/// What the caretaker's line begins with if it has no directory to give.
const FAILED: &str = "failed: ";

/// The directory, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Caretaker {
    dir: PathBuf,
    child: Child,
}

/// There is no directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaretakerError {
    #[error("this program cannot run a second copy of itself")]
    Start(#[source] io::Error),
    #[error(
        "no directory can be made in {}: {reason}. Make it writable, or set TMPDIR to a directory that is",
        env::temp_dir().display()
    )]
    Directory { reason: String },
}

impl Caretaker {
    /// Makes the directory, for nobody else's eyes.
    pub(crate) fn start() -> Result<Self, CaretakerError> {
        let mut child = env::current_exe()
            .and_then(|program| {
                Command::new(program)
                    .arg("caretaker")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    // Ctrl-C in a terminal reaches the foreground group, and this one still has work to do then.
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
            // It ends by itself.
            let _ = child.wait();
            let reason = reason.to_owned();
            return Err(CaretakerError::Directory { reason });
        }
        Ok(Self {
            dir: PathBuf::from(line),
            child,
        })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Caretaker {
    /// The orderly end takes the same way as the violent one.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The other side: what the hidden subcommand does.
pub(crate) fn main() -> Outcome {
    // Those signals are meant for the one whose directory this is. It ends by them, and then so does this.
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
    // Whether or not anybody reads it, the directory goes when the input ends.
    let _ = writeln!(stdout, "{}", dir.path().display());
    let mut nothing = [0; 64];
    let mut stdin = io::stdin().lock();
    while matches!(stdin.read(&mut nothing), Ok(1..)) {}
    remove(dir.keep())
}

/// A process that ends at the same time may still be writing into it.
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
