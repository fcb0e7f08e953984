// SPDX-License-Identifier: Apache-2.0
//! One program of a server: started in the private directory, known to the watchdog, collected on drop.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::StartError;

/// Writes the process id to the watchdog's directory, then executes the program. A rename creates the file: it is
/// complete or absent. If the watchdog has moved the directory away, the rename fails and the program is not run.
const REGISTER_AND_EXEC: &str =
    r#"file=$1; shift; echo $$ > "$file.new" && mv "$file.new" "$file" && exec "$@""#;

/// Sub-directory with one file per running program, named after it, that contains its process id.
pub(super) const RUN_DIR: &str = "run";

#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    /// Exit status, once the process is collected. From then on another process can have its id.
    ended: Option<ExitStatus>,
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
            // Ctrl-C in a terminal reaches the foreground group. The watchdog ends these processes in order instead.
            .process_group(0)
            .spawn()
            .map_err(|source| StartError::Run {
                program: program.to_path_buf(),
                source,
            })?;
        Ok(Self {
            name,
            child,
            ended: None,
            dir: dir.to_path_buf(),
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // A process that has just ended cannot be signalled, and does not have to be.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Returns an error if the program has ended.
    pub(super) fn check(&mut self) -> Result<(), StartError> {
        let Some(status) = self.collect(WaitIdOptions::NOHANG) else {
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

    /// Collects the process when it has ended. Its id is withdrawn between its end and the collection: before the
    /// collection no other process can get the id, and afterwards the watchdog does not know it, so it never kills
    /// another process.
    fn collect(&mut self, how: WaitIdOptions) -> Option<ExitStatus> {
        if self.ended.is_none() {
            let id = WaitId::Pid(Pid::from_child(&self.child));
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
            let found = rustix::io::retry_on_intr(|| waitid(id.clone(), options));
            if let Ok(Some(_)) = found {
                let _ = fs::remove_file(self.dir.join(RUN_DIR).join(self.name));
                self.ended = self.child.wait().ok();
            }
        }
        self.ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.collect(WaitIdOptions::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn the_watchdog_forgets_an_ended_program() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(RUN_DIR)).unwrap();
        let mut process = Process::start(dir.path(), "short", Path::new("true"), &[]).unwrap();
        // The limit only detects a hang.
        let mut looks = 0..6000;
        let error = loop {
            match process.check() {
                Err(error) => break error,
                Ok(()) => assert!(looks.next().is_some(), "it ends"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert!(error.to_string().starts_with("short ended with "), "{error}");
        assert!(!dir.path().join(RUN_DIR).join("short").exists());
    }
}
