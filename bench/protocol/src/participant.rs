// SPDX-License-Identifier: Apache-2.0
//! The side of a participant: its parameters, its output, and its measurements.

use std::{
    env, fs,
    io::{self, BufRead, Write},
    process, str,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};

/// Parameters from the driver, in the environment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Told {
    /// `BENCH`.
    pub bench: String,
    /// `BENCH_WHO`.
    pub who: String,
    /// `BENCH_MODE`, where a benchmark has several.
    pub mode: String,
    /// `BENCH_N`.
    pub n: usize,
}

impl Told {
    /// Reads the environment.
    ///
    /// # Panics
    /// When a variable is missing: the program was not started by a driver.
    #[must_use]
    pub fn from_environment() -> Self {
        Self {
            bench: variable("BENCH"),
            who: variable("BENCH_WHO"),
            mode: env::var("BENCH_MODE").unwrap_or_default(),
            n: variable("BENCH_N").parse().expect("BENCH_N is a number"),
        }
    }

    /// The same for a program that runs alone.
    #[must_use]
    pub fn new(bench: &str, who: &str, n: usize) -> Self {
        Self {
            bench: bench.to_owned(),
            who: who.to_owned(),
            mode: String::new(),
            n,
        }
    }

    /// A row of figures, with the columns that every benchmark has. `peak_mb` is that of now.
    #[must_use]
    pub fn row(&self, taken: Taken) -> Row {
        let mut row = Map::new();
        row.insert("bench".to_owned(), self.bench.clone().into());
        row.insert("who".to_owned(), self.who.clone().into());
        row.insert("n".to_owned(), self.n.into());
        Row(row)
            .with("wall_s", rounded(taken.wall.as_secs_f64()))
            .with("cpu_s", rounded(taken.cpu.as_secs_f64()))
            .with("peak_mb", rounded(peak_mb()))
    }
}

/// A variable that a driver sets.
///
/// # Panics
/// When it is missing: the program was not started by a driver.
#[must_use]
pub fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("a driver sets {name}; see bench/README.md"))
}

/// One line of figures.
#[derive(Clone, Debug)]
pub struct Row(Map<String, Value>);

impl Row {
    /// Adds a figure, or a word such as `case`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Prints it.
    pub fn print(self) {
        say(&Value::Object(self.0).to_string());
    }
}

/// Says a word to the driver.
pub fn say(word: &str) {
    let mut out = io::stdout().lock();
    if writeln!(out, "{word}").and_then(|()| out.flush()).is_err() {
        // The driver has ended.
        process::exit(1);
    }
}

/// Lines from the driver. This process exits when the driver ends.
#[must_use]
pub fn lifeline() -> Receiver<String> {
    let (sender, lines) = mpsc::sync_channel(8);
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        process::exit(1);
    });
    lines
}

/// A moment from which time and CPU time are taken.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    wall: Duration,
    cpu: Duration,
}

/// The time and the CPU time of all threads since a [`Start`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Taken {
    /// The time that passed.
    pub wall: Duration,
    /// The CPU time of this process, user and system.
    pub cpu: Duration,
}

impl Start {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self {
            wall: read(ClockId::Monotonic),
            cpu: read(ClockId::ProcessCPUTime),
        }
    }

    /// From then until now.
    #[must_use]
    pub fn taken(&self) -> Taken {
        Taken {
            wall: read(ClockId::Monotonic).saturating_sub(self.wall),
            cpu: read(ClockId::ProcessCPUTime).saturating_sub(self.cpu),
        }
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// The time of day in nanoseconds since 1970, to compare with what an object carries.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "two processes have this clock in common"
)]
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

/// The most memory that was resident, in MB of a million bytes.
#[must_use]
pub fn peak_mb() -> f64 {
    memory("VmHWM:")
}

/// The memory that is resident now, in MB of a million bytes.
#[must_use]
pub fn resident_mb() -> f64 {
    memory("VmRSS:")
}

/// Forgets the peak so far.
///
/// # Panics
/// When the kernel refuses it: the peak that is shown later would be a wrong one.
pub fn reset_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
}

fn memory(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| {
        line.strip_prefix(field)?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()
    });
    kib.map_or(f64::NAN, |kib: f64| kib * 1024.0 / 1e6)
}

/// The value below which `percent` of `sorted` lie.
#[must_use]
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

/// Three digits after the point.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_are_measured() {
        let start = Start::now();
        let held = vec![1_u8; 64 << 20];
        assert!(resident_mb() > 64.0);
        assert!(peak_mb() >= resident_mb());
        drop(held);
        assert!(start.taken().cpu > Duration::ZERO);
    }

    #[test]
    fn a_percentile_is_a_measured_value() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&sorted, 50), 51);
        assert_eq!(percentile(&sorted, 99), 100);
        assert_eq!(percentile(&[], 99), 0);
    }
}
