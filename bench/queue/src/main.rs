// SPDX-License-Identifier: Apache-2.0
//! Measures the work queue: add, take and done of one key, and with a million keys waiting.
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
        ("waiting_1m_groups", WAITING, Options::new().grouping(grouping)),
    ];
    for (case, waiting, options) in cases {
        if only.is_none_or(|only| only == case) {
            measure(case, waiting, options, operations);
        }
    }
}

/// Keeps `waiting` keys in the queue (or works on a single one) and times take, done and add.
fn measure(case: &str, waiting: usize, options: Options<Request>, operations: u32) {
    reset_peak();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let queue = Queue::new(Arc::clone(&clock), options.metrics(Arc::new(Counts::default())));
    let namespaces: Vec<Arc<str>> = (0..100).map(|n| Arc::from(format!("namespace-{n}"))).collect();
    let key = |i: usize| Request {
        namespace: Arc::clone(&namespaces[i % namespaces.len()]),
        name: Arc::from(format!("object-{i}")),
    };
    let single = key(0);
    if waiting > 1 {
        for i in 0..waiting {
            queue.add(key(i));
        }
    }
    let (cpu, start) = (cpu(), clock.now());
    for _ in 0..operations {
        if waiting == 1 {
            queue.add(single.clone());
        }
        let item = take(&queue);
        if waiting == 1 {
            item.done();
        } else {
            let key = item.key().clone();
            item.done();
            queue.add(key);
        }
    }
    let wall = clock.now().saturating_since(start);
    let cpu = self::cpu().saturating_sub(cpu);
    println!(
        r#"{{"bench":"queue","who":"steersman","case":"{case}","n":{operations},"wall_s":{:.6},"cpu_s":{:.6},"peak_mb":{:.1},"ns_per_op":{:.1}}}"#,
        wall.as_secs_f64(),
        cpu.as_secs_f64(),
        peak_mb(),
        wall.as_nanos() as f64 / f64::from(operations),
    );
}

/// Takes as a worker does, by the future; it never has to wait here.
fn take(queue: &Queue<Request>) -> Item<Request> {
    match pin!(queue.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(item)) => item,
        _ => unreachable!("a key was just added"),
    }
}

/// What a set of metrics would do at the least.
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

/// What the main thread has used; there is no other. The kernel's account, because std has no `getrusage`.
fn cpu() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = schedstat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

/// Starts the account of the peak anew, so that a case does not show that of the one before it.
fn reset_peak() {
    // Where this is not permitted the peak is that of the whole run.
    drop(std::fs::write("/proc/self/clear_refs", "5"));
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let row = status.lines().find_map(|row| row.strip_prefix("VmHWM:"));
    let kb: Option<f64> = row.and_then(|row| row.trim().trim_end_matches(" kB").parse().ok());
    kb.unwrap_or_default() / 1024.0
}
