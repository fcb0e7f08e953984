// SPDX-License-Identifier: Apache-2.0
//! Builds or finds the real API server.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

pub(crate) use steersman_assets::describe;
use steersman_assets::{Assets, BuildError, Progress};

use crate::Failure;

/// Interval between progress lines if standard error is not a terminal.
const SAY_EVERY: Duration = Duration::from_secs(20);

/// `cargo xtask kube`: prints the directory on standard output and progress on standard error.
pub(crate) fn print() -> Result<(), Failure> {
    let assets = find_or_build().map_err(|error| describe(&error))?;
    println!("{}", assets.dir().display());
    Ok(())
}

pub(crate) fn find_or_build() -> Result<Assets, BuildError> {
    let mut reporter = Reporter::new();
    let result = steersman_assets::find_or_build(&mut |progress| reporter.report(&progress));
    reporter.end();
    result
}

/// Prints progress: one line that is rewritten on a terminal, and occasional lines elsewhere.
struct Reporter {
    start: Instant,
    said: Option<(Instant, std::mem::Discriminant<Progress>)>,
    terminal: bool,
}

impl Reporter {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            said: None,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn report(&mut self, progress: &Progress) {
        let kind = std::mem::discriminant(progress);
        if self.said.is_none() {
            eprintln!("building the real API server from Go modules, once: about ten minutes on two cores");
        }
        let seconds = self.start.elapsed().as_secs();
        if self.terminal {
            eprint!("\r\x1b[K  {progress} ({seconds} s)");
            let _ = std::io::stderr().flush();
        } else if self
            .said
            .is_none_or(|(when, what)| what != kind || when.elapsed() >= SAY_EVERY)
        {
            eprintln!("  {progress} ({seconds} s)");
        } else {
            return;
        }
        self.said = Some((Instant::now(), kind));
    }

    fn end(&self) {
        if self.terminal && self.said.is_some() {
            eprintln!();
        }
    }
}
