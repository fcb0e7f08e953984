// SPDX-License-Identifier: Apache-2.0
//! Metrics of controllers, with the names of controller-runtime and client-go.
//!
//! Metrics that these do not have begin with `steersman_`. Two names are older than that rule, are fixed by requirements
//! (R149 and R92), and stay: `reconcile_hot_loop_total` and `controller_warm_pending`.
//!
//! # Guarantees
//! 1. A controller that runs again uses the same series: counters never decrease.
//! 2. Gauges are computed when they are read, and are zero while a controller does not run.
//! 3. The series of a controller are removed when the controller is dropped, unless a later controller has the same name.

mod declared;
mod gauges;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, MutexGuard, Weak, atomic::AtomicI64},
    time::Duration,
};

use steersman_core::Mutex;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use steersman_queue::Depth;

use self::{declared::DeclaredMetrics, gauges::Gauges};

pub(crate) use self::declared::{DeclaredMetric, DeclaredValue};

/// Buckets of `controller_runtime_reconcile_time_seconds`.
const RECONCILE_SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

/// Buckets of `workqueue_queue_duration_seconds` and `workqueue_work_duration_seconds`: from 10 ns, each ten times the last.
///
/// They are multiplied as in Go, so that they have the same rounding errors: these show in `le`, which Prometheus compares
/// as text.
const QUEUE_SECONDS: [f64; 12] = {
    let mut buckets = [10e-9; 12];
    let mut index = 1;
    while index < buckets.len() {
        buckets[index] = buckets[index - 1] * 10.0;
        index += 1;
    }
    buckets
};

/// Metrics of all controllers of one manager. Clones share the metrics.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    reconciles: Family<ResultLabels, Counter>,
    errors: Family<ControllerLabels, Counter>,
    terminal_errors: Family<ControllerLabels, Counter>,
    panics: Family<ControllerLabels, Counter>,
    timeouts: Family<ControllerLabels, Counter>,
    other_panics: Family<ControllerLabels, Counter>,
    map_failures: Family<ControllerLabels, Counter>,
    hot_loops: Family<ControllerLabels, Counter>,
    long_running: Family<ControllerLabels, Gauge>,
    configs: Family<ConfigLabels, Counter>,
    seconds: Family<ControllerLabels, Histogram, fn() -> Histogram>,
    workers: Family<ControllerLabels, Gauge>,
    active: Family<ControllerLabels, Gauge>,
    adds: Family<QueueLabels, Counter>,
    retries: Family<QueueLabels, Counter>,
    queued_seconds: Family<QueueLabels, Histogram, fn() -> Histogram>,
    worked_seconds: Family<QueueLabels, Histogram, fn() -> Histogram>,
    queues: Mutex<BTreeMap<String, Weak<dyn Queued>>>,
    /// Metrics that reconcilers declare, by controller.
    declared: Mutex<BTreeMap<String, Vec<DeclaredMetric>>>,
}

/// A queue, for its gauges.
pub(crate) trait Queued: Send + Sync {
    fn depth(&self) -> Depth;
    fn depth_by_priority(&self) -> Vec<(i32, usize)>;
}

impl<K: steersman_queue::Key> Queued for steersman_queue::Queue<K> {
    fn depth(&self) -> Depth {
        self.depth()
    }

    fn depth_by_priority(&self) -> Vec<(i32, usize)> {
        self.depth_by_priority()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    controller: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfigLabels {
    config: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: String,
    controller: String,
}

/// Result of a reconcile, as in `controller_runtime_reconcile_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Success,
    Error,
    Requeue,
    RequeueAfter,
}

impl Ended {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Success, "success"),
        (Self::Error, "error"),
        (Self::Requeue, "requeue"),
        (Self::RequeueAfter, "requeue_after"),
    ];
}

/// Series of one controller, looked up once.
pub(crate) struct Series {
    labels: ControllerLabels,
    families: Metrics,
    /// Distinguishes this controller from others of the same name.
    queue: Weak<dyn Queued>,
    reconciles: [Counter; 4],
    pub(crate) errors: Counter,
    pub(crate) terminal_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) timeouts: Counter,
    /// Panics of sources, and of workers outside of a reconcile.
    pub(crate) other_panics: Counter,
    /// Failed calls of async mapping functions.
    pub(crate) map_failures: Counter,
    pub(crate) hot_loops: Counter,
    pub(crate) long_running: Gauge<i64, AtomicI64>,
    pub(crate) workers: Gauge<i64, AtomicI64>,
    pub(crate) active: Gauge<i64, AtomicI64>,
    seconds: Histogram,
    adds: Counter,
    retries: Counter,
    queued_seconds: Histogram,
    worked_seconds: Histogram,
}

impl Metrics {
    /// Creates metrics without values.
    #[must_use]
    pub fn new() -> Self {
        let seconds: fn() -> Histogram = || Histogram::new(RECONCILE_SECONDS);
        let queue_seconds: fn() -> Histogram = || Histogram::new(QUEUE_SECONDS);
        Self(Arc::new(Families {
            reconciles: Family::default(),
            errors: Family::default(),
            terminal_errors: Family::default(),
            panics: Family::default(),
            timeouts: Family::default(),
            other_panics: Family::default(),
            map_failures: Family::default(),
            hot_loops: Family::default(),
            long_running: Family::default(),
            configs: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            workers: Family::default(),
            active: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queued_seconds: Family::new_with_constructor(queue_seconds),
            worked_seconds: Family::new_with_constructor(queue_seconds),
            queues: Mutex::default(),
            declared: Mutex::default(),
        }))
    }

    /// Registers the metrics.
    ///
    /// ```
    /// use prometheus_client::{encoding::text::encode, registry::Registry};
    /// use steersman_runtime::Metrics;
    ///
    /// let mut registry = Registry::default();
    /// Metrics::new().register(&mut registry);
    /// let mut text = String::new();
    /// encode(&mut text, &registry)?;
    /// # Ok::<(), std::fmt::Error>(())
    /// ```
    pub fn register(&self, registry: &mut Registry) {
        self.0.register_reconciles(registry);
        self.0.register_own(registry);
        self.0.register_queues(registry);
        registry.register_collector(Box::new(Gauges::of(self)));
        registry.register_collector(Box::new(DeclaredMetrics(self.clone())));
    }

    /// Returns the series of a controller.
    pub(crate) fn series(
        &self,
        controller: &str,
        queue: Weak<dyn Queued>,
        declared: &[DeclaredMetric],
    ) -> Series {
        let families = &self.0;
        let labels = ControllerLabels {
            controller: controller.to_owned(),
        };
        let named = QueueLabels {
            name: controller.to_owned(),
            controller: controller.to_owned(),
        };
        let result = |result| ResultLabels {
            controller: controller.to_owned(),
            result,
        };
        // Held to the end, so that a controller of the same name that is dropped now does not remove these series.
        let mut queues = self.queues();
        queues.insert(controller.to_owned(), queue.clone());
        let mut all_declared = families.declared.lock();
        all_declared.insert(controller.to_owned(), declared.to_vec());
        drop(all_declared);
        Series {
            queue,
            reconciles: Ended::ALL.map(|(_, name)| families.reconciles.get_or_create_owned(&result(name))),
            errors: families.errors.get_or_create_owned(&labels),
            terminal_errors: families.terminal_errors.get_or_create_owned(&labels),
            panics: families.panics.get_or_create_owned(&labels),
            timeouts: families.timeouts.get_or_create_owned(&labels),
            other_panics: families.other_panics.get_or_create_owned(&labels),
            map_failures: families.map_failures.get_or_create_owned(&labels),
            hot_loops: families.hot_loops.get_or_create_owned(&labels),
            long_running: families.long_running.get_or_create_owned(&labels),
            workers: families.workers.get_or_create_owned(&labels),
            active: families.active.get_or_create_owned(&labels),
            seconds: families.seconds.get_or_create_owned(&labels),
            adds: families.adds.get_or_create_owned(&named),
            retries: families.retries.get_or_create_owned(&named),
            queued_seconds: families.queued_seconds.get_or_create_owned(&named),
            worked_seconds: families.worked_seconds.get_or_create_owned(&named),
            families: self.clone(),
            labels,
        }
    }

    /// Counts a value of a live configuration, valid or not.
    pub(crate) fn config_read(&self, config: &str, is_valid: bool) {
        let labels = |result| ConfigLabels {
            config: config.to_owned(),
            result,
        };
        // Both series exist from the first value on, so that an alert sees the first failure.
        let [applied, rejected] =
            ["applied", "rejected"].map(|result| self.0.configs.get_or_create_owned(&labels(result)));
        let counter = if is_valid { applied } else { rejected };
        counter.inc();
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, Weak<dyn Queued>>> {
        self.0.queues.lock()
    }
}

impl Families {
    /// Registers the metrics of reconciles, with the names of controller-runtime.
    fn register_reconciles(&self, registry: &mut Registry) {
        let runtime = registry.sub_registry_with_prefix("controller_runtime");
        // The encoder adds `_total` to the names of counters.
        runtime.register(
            "reconcile",
            "Reconciles by controller and result",
            self.reconciles.clone(),
        );
        runtime.register("reconcile_errors", "Reconciles that failed", self.errors.clone());
        runtime.register(
            "terminal_reconcile_errors",
            "Reconciles that failed and are not retried",
            self.terminal_errors.clone(),
        );
        runtime.register(
            "reconcile_panics",
            "Reconciles that panicked",
            self.panics.clone(),
        );
        runtime.register(
            "reconcile_timeouts",
            "Reconciles that timed out",
            self.timeouts.clone(),
        );
        runtime.register(
            "reconcile_time_seconds",
            "Duration of a reconcile",
            self.seconds.clone(),
        );
        runtime.register(
            "max_concurrent_reconciles",
            "Workers of a controller",
            self.workers.clone(),
        );
        runtime.register("active_workers", "Workers that are busy", self.active.clone());
    }

    /// Registers the metrics that controller-runtime does not have.
    fn register_own(&self, registry: &mut Registry) {
        registry.register(
            "steersman_controller_panics",
            "Panics of sources, and of workers outside of a reconcile",
            self.other_panics.clone(),
        );
        registry.register(
            "steersman_map_failures",
            "Calls of async mapping functions that failed, panicked or timed out",
            self.map_failures.clone(),
        );
        registry.register(
            "reconcile_hot_loop",
            "Delays of keys whose reconciles change objects more often than the limit allows",
            self.hot_loops.clone(),
        );
        registry.register(
            "steersman_reconciles_long_running",
            "Reconciles that run for longer than the time after which a warning is logged",
            self.long_running.clone(),
        );
        registry.register(
            "steersman_config_updates",
            "Values of a live configuration that were applied, or rejected because they are invalid",
            self.configs.clone(),
        );
    }

    /// Registers the metrics of queues, with the names of client-go.
    fn register_queues(&self, registry: &mut Registry) {
        let queue = registry.sub_registry_with_prefix("workqueue");
        queue.register("adds", "Keys that became ready", self.adds.clone());
        queue.register(
            "retries",
            "Keys that were put back with a delay",
            self.retries.clone(),
        );
        queue.register(
            "queue_duration_seconds",
            "Time that keys were ready before a worker took them",
            self.queued_seconds.clone(),
        );
        queue.register(
            "work_duration_seconds",
            "Time that workers had a key",
            self.worked_seconds.clone(),
        );
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Series {
    pub(crate) fn reconciled(&self, ended: Ended, took: Duration) {
        self.reconciles[ended as usize].inc();
        self.seconds.observe(took.as_secs_f64());
    }
}

impl steersman_queue::Metrics for Series {
    fn added(&self, keys: u64) {
        self.adds.inc_by(keys);
    }

    fn taken(&self, queued: Duration) {
        self.queued_seconds.observe(queued.as_secs_f64());
    }

    fn finished(&self, worked: Duration) {
        self.worked_seconds.observe(worked.as_secs_f64());
    }

    fn retried(&self) {
        self.retries.inc();
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let families = &self.families.0;
        let labels = &self.labels;
        let mut queues = self.families.queues();
        let last = queues.get(&labels.controller);
        if !last.is_some_and(|last| last.ptr_eq(&self.queue)) {
            return; // The series belong to a later controller.
        }
        queues.remove(&labels.controller);
        families.declared.lock().remove(&labels.controller);
        for (_, result) in Ended::ALL {
            families.reconciles.remove(&ResultLabels {
                controller: labels.controller.clone(),
                result,
            });
        }
        for family in [
            &families.errors,
            &families.terminal_errors,
            &families.panics,
            &families.timeouts,
            &families.other_panics,
            &families.map_failures,
            &families.hot_loops,
        ] {
            family.remove(labels);
        }
        families.seconds.remove(labels);
        families.workers.remove(labels);
        families.active.remove(labels);
        families.long_running.remove(labels);
        let named = QueueLabels {
            name: labels.controller.clone(),
            controller: labels.controller.clone(),
        };
        families.adds.remove(&named);
        families.retries.remove(&named);
        families.queued_seconds.remove(&named);
        families.worked_seconds.remove(&named);
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Series").field(&self.labels.controller).finish()
    }
}
