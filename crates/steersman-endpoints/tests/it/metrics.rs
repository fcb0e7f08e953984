// SPDX-License-Identifier: Apache-2.0
//! The output of a registry.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};
use steersman_endpoints::{Exposition, MetricsRegistry, RegistrationGuard};

type Labels = Vec<(String, String)>;

/// Counters of controller-runtime and client-go.
const COUNTERS: [&str; 12] = [
    "certwatcher_read_certificate_errors_total",
    "certwatcher_read_certificate_total",
    "controller_runtime_reconcile_errors_total",
    "controller_runtime_reconcile_panics_total",
    "controller_runtime_reconcile_timeouts_total",
    "controller_runtime_reconcile_total",
    "controller_runtime_terminal_reconcile_errors_total",
    "controller_runtime_webhook_requests_total",
    "leader_election_slowpath_total",
    "rest_client_requests_total",
    "workqueue_adds_total",
    "workqueue_retries_total",
];

/// Gauges of controller-runtime and client-go.
const GAUGES: [&str; 7] = [
    "controller_runtime_active_workers",
    "controller_runtime_max_concurrent_reconciles",
    "controller_runtime_webhook_requests_in_flight",
    "leader_election_master_status",
    "workqueue_depth",
    "workqueue_longest_running_processor_seconds",
    "workqueue_unfinished_work_seconds",
];

fn labels(controller: &str) -> Labels {
    vec![("controller".to_owned(), controller.to_owned())]
}

fn register_gauge(metrics: &MetricsRegistry, name: &str, controller: &str, value: i64) -> RegistrationGuard {
    let family = Family::<Labels, Gauge>::default();
    family.get_or_create(&labels(controller)).set(value);
    metrics.register(|part| part.register(name, "A gauge", family))
}

fn register_histogram(registry: &mut Registry, name: &str, make: fn() -> Histogram) {
    let family = Family::<Labels, Histogram, fn() -> Histogram>::new_with_constructor(make);
    family.get_or_create(&labels("web")).observe(0.3);
    registry.register(name, "A histogram", family);
}

/// Returns the bounds of a histogram's buckets as they are written.
fn bounds(text: &str, name: &str) -> Vec<String> {
    text.lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket{{")))
        .map(|line| {
            line.split("le=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
}

#[test]
fn guarantee_3_names_of_counters_and_gauges_stay_as_registered() {
    let metrics = MetricsRegistry::new();
    let _registered = metrics.register(|registry| {
        for name in COUNTERS {
            let family = Family::<Labels, Counter>::default();
            family.get_or_create(&labels("web")).inc();
            registry.register(name, "A counter", family);
        }
        for name in GAUGES {
            let family = Family::<Labels, Gauge>::default();
            family.get_or_create(&labels("web")).set(7);
            registry.register(name, "A gauge", family);
        }
    });
    let counters = COUNTERS.map(|name| {
        format!("# HELP {name} A counter.\n# TYPE {name} counter\n{name}{{controller=\"web\"}} 1\n")
    });
    let gauges = GAUGES
        .map(|name| format!("# HELP {name} A gauge.\n# TYPE {name} gauge\n{name}{{controller=\"web\"}} 7\n"));
    let expected: Vec<_> = counters.into_iter().chain(gauges).collect();
    let text = metrics.encode(Exposition::Text);
    for family in &expected {
        assert!(text.contains(family), "{family} in {text}");
    }
    assert_eq!(text.len(), expected.concat().len(), "{text}");
}

#[test]
fn guarantee_3_a_counter_ends_in_exactly_one_total() {
    for name in ["webs_created", "webs_created_total"] {
        let metrics = MetricsRegistry::new();
        metrics
            .register(|part| part.register(name, "Created", Counter::<u64>::default()))
            .detach();
        let text =
            "# HELP webs_created_total Created.\n# TYPE webs_created_total counter\nwebs_created_total 0\n";
        assert_eq!(metrics.encode(Exposition::Text), text);
        // The family's name has no `_total` in OpenMetrics.
        let open = "# HELP webs_created Created.\n# TYPE webs_created counter\nwebs_created_total 0\n# EOF\n";
        assert_eq!(metrics.encode(Exposition::OpenMetrics), open);
    }
}

#[test]
fn a_histogram_has_count_sum_and_buckets() {
    let metrics = MetricsRegistry::new();
    let _registered = metrics.register(|registry| {
        register_histogram(registry, "webs_seconds", || Histogram::new([0.1, 1.0]));
    });
    let text = metrics.encode(Exposition::Text);
    assert_eq!(bounds(&text, "webs_seconds"), ["0.1", "1", "+Inf"]);
    assert!(text.contains("\nwebs_seconds_count{controller=\"web\"} 1\n"));
    assert!(text.contains("\nwebs_seconds_sum{controller=\"web\"} 0.3\n"));
    assert!(text.contains("\nwebs_seconds_bucket{controller=\"web\",le=\"1\"} 1\n"));
}

#[test]
fn guarantee_1_dropping_the_guard_removes_the_metrics() {
    let metrics = MetricsRegistry::new();
    let (one, other) = (
        register_gauge(&metrics, "workers", "one", 1),
        register_gauge(&metrics, "workers", "other", 2),
    );
    let both = "# HELP workers A gauge.\n# TYPE workers gauge\nworkers{controller=\"one\"} 1\nworkers{controller=\"other\"} 2\n";
    assert_eq!(metrics.encode(Exposition::Text), both);
    drop(one);
    let left = "# HELP workers A gauge.\n# TYPE workers gauge\nworkers{controller=\"other\"} 2\n";
    assert_eq!(metrics.encode(Exposition::Text), left);
    other.detach();
    assert_eq!(metrics.encode(Exposition::Text), left);
}

#[test]
fn guarantee_2_the_first_of_two_equal_series_wins() {
    let metrics = MetricsRegistry::new();
    let first = register_gauge(&metrics, "workers", "web", 1);
    let _second = register_gauge(&metrics, "workers", "web", 2);
    assert!(
        metrics
            .encode(Exposition::Text)
            .ends_with("\nworkers{controller=\"web\"} 1\n")
    );
    drop(first);
    assert!(
        metrics
            .encode(Exposition::Text)
            .ends_with("\nworkers{controller=\"web\"} 2\n")
    );
}

#[test]
fn guarantee_4_the_output_is_sorted() {
    let text = || {
        let metrics = MetricsRegistry::new();
        let family = Family::<Labels, Gauge>::default();
        for number in 0..100 {
            family.get_or_create(&labels(&number.to_string())).set(number);
        }
        metrics
            .register(|part| part.register("workers", "A gauge", family))
            .detach();
        metrics.encode(Exposition::Text)
    };
    // The hash map of each family has its own order.
    assert_eq!(text(), text());
}

/// A collector that uses its own registry, and counts the scrapes.
#[derive(Debug)]
struct Reentrant(MetricsRegistry, Arc<AtomicUsize>);

impl Collector for Reentrant {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let scrapes = self.1.fetch_add(1, Ordering::SeqCst);
        let inner = self.0.register(|_| {});
        let scrapes = ConstGauge::new(i64::try_from(scrapes).unwrap());
        scrapes.encode(encoder.encode_descriptor(
            "scrapes",
            "Number of scrapes.",
            None,
            scrapes.metric_type(),
        )?)?;
        drop(inner);
        Ok(())
    }
}

#[test]
fn guarantee_6_a_collector_runs_at_each_scrape_without_a_lock() {
    let (metrics, scrapes) = (MetricsRegistry::new(), Arc::default());
    let collector = Reentrant(metrics.clone(), Arc::clone(&scrapes));
    let _registered = metrics.register(|part| part.register_collector(Box::new(collector)));
    assert!(metrics.encode(Exposition::Text).ends_with("\nscrapes 0\n"));
    assert!(metrics.encode(Exposition::Text).ends_with("\nscrapes 1\n"));
    assert_eq!(scrapes.load(Ordering::SeqCst), 2);
}

#[derive(Debug)]
struct Broken;

impl Collector for Broken {
    fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        Err(fmt::Error)
    }
}

#[test]
fn a_failed_collector_does_not_affect_others() {
    let metrics = MetricsRegistry::new();
    let _broken = metrics.register(|part| part.register_collector(Box::new(Broken)));
    let _good = register_gauge(&metrics, "workers", "web", 1);
    assert!(
        metrics
            .encode(Exposition::Text)
            .ends_with("\nworkers{controller=\"web\"} 1\n")
    );
}

#[cfg(target_os = "linux")]
#[test]
fn register_process_adds_start_time_cpu_memory_and_open_files() {
    let metrics = MetricsRegistry::new();
    let _registered = metrics.register_process();
    let value = |name: &str| -> f64 {
        let text = metrics.encode(Exposition::Text);
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    // Between 2020 and 2100.
    assert!((1.577e9..4.103e9).contains(&value("process_start_time_seconds")));
    assert!(value("process_cpu_seconds_total") >= 0.0);
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    let before = value("process_open_fds");
    let _files: Vec<_> = (0..400)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    // Other tests of this process open and close files meanwhile.
    assert!(value("process_open_fds") > before + 100.0);
    assert!(
        metrics
            .encode(Exposition::Text)
            .contains("# TYPE process_cpu_seconds_total counter\n")
    );
}
