// SPDX-License-Identifier: Apache-2.0
//! One program of a server: started in the private directory, known to the watchdog, collected on drop.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::StartError;

/// Writes the process id where the watchdog looks for it, then becomes the program. The file appears by a rename: it
/// is whole or absent. If the watchdog has moved the directory away, the rename fails and the program is not run.
const REGISTER_AND_EXEC: &str =
    r#"file=$1; shift; echo $$ > "$file.new" && mv "$file.new" "$file" && exec "$@""#;

/// The sub-directory with one file per program that runs, named after it, holding its process id.
pub(super) const RUN_DIR: &str = "run";

#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    dir: PathBuf,
}

pub(super) fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}

impl Process {
    pub(super) fn start(
        dir: &Path,
        name: &'static str,
        program: &Path,
        flags: &[String],
    ) -> Result<Self, StartError> {
        let log = log_path(dir, name);
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(|source| StartError::write(log.clone(), source))?;
        let errors = file
            .try_clone()
            .map_err(|source| StartError::write(log, source))?;
        let child = Command::new("sh")
            .args(["-c", REGISTER_AND_EXEC, "sh"])
            .arg(dir.join(RUN_DIR).join(name))
            .arg(program)
            .args(flags)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            // Ctrl-C in a terminal reaches the foreground group. These end by the watchdog, in order, not by that.
            .process_group(0)
            .spawn()
            .map_err(|source| StartError::Run {
                program: program.to_path_buf(),
                source,
            })?;
        Ok(Self {
            name,
            child,
            dir: dir.to_path_buf(),
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        // A process that has just ended on its own cannot be signalled, and need not be.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// An error if the program has ended.
    pub(super) fn check(&mut self) -> Result<(), StartError> {
        let Ok(Some(status)) = self.child.try_wait() else {
            return Ok(());
        };
        let log = fs::read_to_string(log_path(&self.dir, self.name)).unwrap_or_default();
        if log.contains("no space left on device") {
            return Err(StartError::DiskFull {
                path: self.dir.clone(),
            });
        }
        let last = log
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("nothing")
            .to_owned();
        Err(StartError::Ended {
            program: self.name,
            status,
            last,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The id is withdrawn before the process is collected: until then it cannot be given to somebody else, so the
        // watchdog never kills a stranger.
        let _ = fs::remove_file(self.dir.join(RUN_DIR).join(self.name));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
