// SPDX-License-Identifier: Apache-2.0
//! The participant's side of the benchmark `kit`: counts reconciles and answers the driver.

use std::{
    collections::HashMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc::Receiver},
};

use crate::participant::{Start, Told, rounded, say};

/// The round, an annotation of a Site, in which each Site was last reconciled.
#[derive(Debug, Default)]
pub struct Rounds {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reconciles: usize,
    /// By the uid of the Site.
    last: HashMap<String, String>,
    round: String,
    /// Sites whose last round is `round`.
    complete: usize,
}

impl Rounds {
    /// The annotation that the driver changes in each round.
    pub const ANNOTATION: &'static str = "bench.example/round";

    /// Counts a reconcile of a Site with this annotation.
    pub fn reconciled(&self, uid: &str, round: &str) {
        let mut state = self.state();
        state.reconciles += 1;
        let last = state.last.insert(uid.to_owned(), round.to_owned());
        if round == state.round && last.as_deref() != Some(round) {
            state.complete += 1;
            self.changed.notify_all();
        }
    }

    /// Does what the driver says, until it says `end`. It blocks its thread.
    ///
    /// # Errors
    /// When the driver says something else.
    pub fn follow(&self, told: &Told, mut start: Start, driver: &Receiver<String>) -> Result<(), String> {
        let mut before = 0;
        for line in driver {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["measure"] => {
                    (start, before) = (Start::now(), self.state().reconciles);
                    say("armed");
                }
                ["row", case, requests] => {
                    let (taken, reconciles) = (start.taken(), self.state().reconciles - before);
                    let each = taken.cpu.as_secs_f64() * 1e6 / reconciles.max(1) as f64;
                    let requests: usize = requests.parse().map_err(|_| unknown(&line))?;
                    told.row(taken)
                        .with("case", *case)
                        .with("us_per_reconcile", rounded(each))
                        .with("reconciles", reconciles)
                        .with("requests", requests)
                        .print();
                }
                ["end"] => return Ok(()),
                [round] => {
                    self.wait(round, told.n);
                    say("reconciled");
                }
                _ => return Err(unknown(&line)),
            }
        }
        Ok(())
    }

    fn wait(&self, round: &str, sites: usize) {
        let mut state = self.state();
        state.round = round.to_owned();
        state.complete = state.last.values().filter(|last| *last == round).count();
        while state.complete < sites {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(line: &str) -> String {
    format!("unknown line of the driver: `{line}`")
}
