// SPDX-License-Identifier: Apache-2.0
//! Measures the work queue: add, take and done of one key, with a million keys waiting, and of a million keys that
//! come at once.
//!
//! Prints one JSON object per line; `--quick` does a tenth of the operations, `--case=NAME` only one case. The peers in `bench/peers/go/queue` run the same loops. As they do, the queue
//! reports to a metrics hook, takes the time from the real clock, and has keys of a namespace and a name. The case
//! `waiting_1m_groups` has no peer: there, a hundred namespaces take turns.

#![expect(clippy::print_stdout, reason = "the figures go to stdout")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use steersman_core::{Clock, TokioClock};
use steersman_queue::{Group, Item, Metrics, Options, Queue};

const WAITING: usize = 1_000_000;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Request {
    namespace: Arc<str>,
    name: Arc<str>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--case="));
    let operations = if quick { 100_000 } else { 1_000_000 };
    let grouping = |request: &Request| Group::new("").inner(&*request.namespace);
    let cases = [
        ("one_key", 1, Options::new()),
        ("waiting_1m", WAITING, Options::new()),
        ("fill_drain_1m", WAITING, Options::new()),
        ("waiting_1m_groups", WAITING, Options::new().grouping(grouping)),
    ];
    for (case, waiting, options) in cases {
        if only.is_none_or(|only| only == case) {
            match case {
                "fill_drain_1m" => fill_and_drain(case, options),
                _ => measure(case, waiting, options, operations),
            }
        }
    }
}

/// Keeps `waiting` keys in the queue (or works on a single one) and times take, done and add.
fn measure(case: &str, waiting: usize, options: Options<Request>, operations: u32) {
    let run = Run::new(options);
    let single = run.key(0);
    if waiting > 1 {
        for i in 0..waiting {
            run.queue.add(run.key(i));
        }
    }
    run.time(case, operations, || {
        for _ in 0..operations {
            if waiting == 1 {
                run.queue.add(single.clone());
                take(&run.queue).done();
            } else {
                let item = take(&run.queue);
                let key = item.key().clone();
                item.done();
                run.queue.add(key);
            }
        }
    });
}

/// Adds a million keys, as a first list does, and then works them off.
fn fill_and_drain(case: &str, options: Options<Request>) {
    let run = Run::new(options);
    let keys: Vec<_> = (0..WAITING).map(|i| run.key(i)).collect();
    run.time(case, WAITING as u32, || {
        for key in keys {
            run.queue.add(key);
        }
        for _ in 0..WAITING {
            take(&run.queue).done();
        }
    });
}

struct Run {
    clock: Arc<dyn Clock>,
    queue: Queue<Request>,
    namespaces: Vec<Arc<str>>,
}

impl Run {
    fn new(options: Options<Request>) -> Self {
        reset_peak();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let queue = Queue::new(Arc::clone(&clock), options.metrics(Arc::new(Counts::default())));
        let namespaces = (0..100).map(|n| Arc::from(format!("namespace-{n}"))).collect();
        Self {
            clock,
            queue,
            namespaces,
        }
    }

    fn key(&self, i: usize) -> Request {
        let namespace = Arc::clone(&self.namespaces[i % self.namespaces.len()]);
        Request {
            namespace,
            name: Arc::from(format!("object-{i}")),
        }
    }

    fn time(&self, case: &str, operations: u32, work: impl FnOnce()) {
        let (cpu_before, start) = (cpu(), self.clock.now());
        work();
        let wall = self.clock.now().saturating_since(start);
        let cpu = cpu().saturating_sub(cpu_before);
        println!(
            r#"{{"bench":"queue","who":"steersman","case":"{case}","n":{operations},"wall_s":{:.6},"cpu_s":{:.6},"peak_mb":{:.1},"ns_per_op":{:.1}}}"#,
            wall.as_secs_f64(),
            cpu.as_secs_f64(),
            peak_mb(),
            wall.as_nanos() as f64 / f64::from(operations),
        );
    }
}

/// Takes as a worker does, by the future; it never has to wait here.
fn take(queue: &Queue<Request>) -> Item<Request> {
    match pin!(queue.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(item)) => item,
        _ => unreachable!("a key was just added"),
    }
}

/// Minimal metrics.
#[derive(Default)]
struct Counts {
    added: AtomicU64,
    taken: AtomicU64,
    queued_ns: AtomicU64,
    finished: AtomicU64,
    worked_ns: AtomicU64,
}

impl Metrics for Counts {
    fn added(&self, keys: u64) {
        self.added.fetch_add(keys, Ordering::Relaxed);
    }

    fn taken(&self, queued: Duration) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.queued_ns
            .fetch_add(queued.as_nanos() as u64, Ordering::Relaxed);
    }

    fn finished(&self, worked: Duration) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.worked_ns
            .fetch_add(worked.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// CPU time of the main thread, which is the only one; read from the kernel, because std has no `getrusage`.
fn cpu() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = schedstat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Starts the account of the peak anew, so that a case does not show that of the one before it.
fn reset_peak() {
    // If this is not permitted, the peak covers the whole run.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let row = status.lines().find_map(|row| row.strip_prefix("VmHWM:"));
    let kb: Option<f64> = row.and_then(|row| row.trim().trim_end_matches(" kB").parse().ok());
    kb.unwrap_or_default() / 1024.0
}
