// SPDX-License-Identifier: Apache-2.0
//! Metrics of the process, with the names that all Prometheus clients use.
//!
//! They are four numbers from `/proc`; a crate for them would read much more.

use std::fs;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Reads `/proc` at each scrape. Omits values that cannot be read.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut show = |name: &str, help: &str, metric: &dyn EncodeMetric| {
            let encoder = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
            metric.encode(encoder)
        };
        if let Some(stat) = fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(Stat::parse)
        {
            let ticks = rustix::param::clock_ticks_per_second() as f64;
            let cpu = ConstCounter::new(stat.cpu_ticks as f64 / ticks);
            let help = "Total user and system CPU time spent in seconds.";
            show("process_cpu_seconds", help, &cpu)?;
            let memory = ConstGauge::new(stat.resident_pages as f64 * rustix::param::page_size() as f64);
            show(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                &memory,
            )?;
            if let Some(boot) = fs::read_to_string("/proc/stat")
                .ok()
                .as_deref()
                .and_then(boot_time)
            {
                let start = ConstGauge::new(boot as f64 + stat.start_ticks as f64 / ticks);
                let help = "Start time of the process since unix epoch in seconds.";
                show("process_start_time_seconds", help, &start)?;
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is the directory that is being read.
            let open = ConstGauge::new(open.count().saturating_sub(1) as f64);
            show("process_open_fds", "Number of open file descriptors.", &open)?;
        }
        Ok(())
    }
}

/// Fields of `/proc/self/stat`; see proc_pid_stat(5).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses. The name can contain spaces and parentheses.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The manual counts from one, and `rest` starts with the third field.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the boot time of the machine in seconds since 1970.
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_any_program_name() {
        let text =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 5000 8192 21 18446744073709551615";
        let stat = Stat {
            cpu_ticks: 42,
            start_ticks: 5000,
            resident_pages: 21,
        };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    #[test]
    fn parses_the_boot_time() {
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000));
        assert_eq!(boot_time("cpu 1 2\n"), None);
    }
}
