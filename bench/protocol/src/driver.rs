// SPDX-License-Identifier: Apache-2.0
//! The side of a driver: its command line, and a participant as its child process.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

/// Error message of a driver.
pub type Failure = String;

/// Timeout for output of a participant.
const SILENCE_LIMIT: Duration = Duration::from_secs(300);

/// Arguments of a driver: `bench-NAME [--quick] who=PATH…`.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// Measure with less, to see whether everything works.
    pub quick: bool,
    /// In the order of the command line.
    pub participants: Vec<Participant>,
}

/// A program that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// The name in the table.
    pub who: String,
    /// The program.
    pub path: PathBuf,
}

impl Plan {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// When an argument is neither `--quick` nor `who=PATH`, or there is no participant.
    pub fn from_arguments() -> Result<Self, Failure> {
        Self::parse(std::env::args().skip(1))
    }

    fn parse(words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for word in words {
            match word.split_once('=') {
                _ if word == "--quick" => plan.quick = true,
                Some((who, path)) if !who.is_empty() && !path.is_empty() => {
                    plan.participants.push(Participant {
                        who: who.to_owned(),
                        path: path.into(),
                    });
                }
                _ => return Err(format!("`{word}` is neither --quick nor WHO=PROGRAM")),
            }
        }
        if plan.participants.is_empty() {
            return Err("nobody takes part: name programs as WHO=PROGRAM".to_owned());
        }
        Ok(plan)
    }
}

/// A participant that runs. It ends when this drops.
#[derive(Debug)]
pub struct Running {
    who: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Participant {
    /// Starts the program for one benchmark, with its parameters in the environment.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(&self, bench: &str, told: &[(&str, &OsStr)]) -> Result<Running, Failure> {
        let mut child = Command::new(&self.path)
            .env("BENCH", bench)
            .env("BENCH_WHO", &self.who)
            .envs(told.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} cannot be run: {error}", self.path.display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = mpsc::sync_channel(64);
        // Ends with the child, whose output it reads.
        thread::spawn(move || {
            let read = stdout
                .into_iter()
                .flat_map(|stdout| BufReader::new(stdout).lines());
            for line in read.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running {
            who: self.who.clone(),
            child,
            stdin,
            lines,
        })
    }
}

impl Running {
    /// Waits until the participant says this word. Figures that come before are passed on.
    ///
    /// # Errors
    /// When it ends, says something else, or nothing for five minutes.
    pub fn hears(&mut self, word: &str) -> Result<(), Failure> {
        match self.control()? {
            Some(said) if said == word => Ok(()),
            Some(said) => Err(format!("{} should have said `{word}`, not `{said}`", self.who)),
            None => {
                let ended = self
                    .child
                    .wait()
                    .map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(format!("{} ended before it said `{word}`: {ended}", self.who))
            }
        }
    }

    /// Says a word to the participant.
    ///
    /// # Errors
    /// When it has ended.
    pub fn say(&mut self, word: &str) -> Result<(), Failure> {
        let said = self.stdin.as_mut().map(|stdin| {
            stdin
                .write_all(format!("{word}\n").as_bytes())
                .and_then(|()| stdin.flush())
        });
        match said {
            Some(Ok(())) => Ok(()),
            _ => Err(format!("{} does not listen any more", self.who)),
        }
    }

    /// The number of its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Passes on figures until the participant ends.
    ///
    /// # Errors
    /// When it fails, says something that is no figure, or nothing for five minutes.
    pub fn finish(mut self) -> Result<(), Failure> {
        if let Some(said) = self.control()? {
            return Err(format!("{} said `{said}`, which means nothing here", self.who));
        }
        let status = self
            .child
            .wait()
            .map_err(|error| format!("{} cannot be waited for: {error}", self.who))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} failed with {status}", self.who))
        }
    }

    /// The next line that is no figure; nothing when there are no more.
    fn control(&mut self) -> Result<Option<String>, Failure> {
        loop {
            match self.lines.recv_timeout(SILENCE_LIMIT) {
                Ok(line) if line.starts_with('{') => pass_on(&line)?,
                Ok(line) => return Ok(Some(line)),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "{} said nothing for {} s",
                        self.who,
                        SILENCE_LIMIT.as_secs()
                    ));
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pass_on(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("nobody reads the figures: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Plan, Failure> {
        Plan::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn a_name_can_contain_a_space_and_a_path_an_equals_sign() {
        let plan = parse(&["--quick", "client-go protobuf=a=b"]).unwrap();
        assert!(plan.quick);
        assert_eq!(plan.participants[0].who, "client-go protobuf");
        assert_eq!(plan.participants[0].path, PathBuf::from("a=b"));
    }

    #[test]
    fn rejects_a_run_without_participants() {
        parse(&["--quick"]).unwrap_err();
        parse(&["us"]).unwrap_err();
    }
}
