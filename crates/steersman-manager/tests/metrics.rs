// SPDX-License-Identifier: Apache-2.0
//! What a registry shows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod managed;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::api::core::v1::ConfigMap;
use managed::{Log, cluster, config_map, manager_of, run};
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
use steersman_controller::Controller;
use steersman_manager::{Exposition, MetricsRegistry, Registered};
use steersman_testing::Fixture;

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

/// Their gauges.
const GAUGES: [&str; 7] = [
    "controller_runtime_active_workers",
    "controller_runtime_max_concurrent_reconciles",
    "controller_runtime_webhook_requests_in_flight",
    "leader_election_master_status",
    "workqueue_depth",
    "workqueue_longest_running_processor_seconds",
    "workqueue_unfinished_work_seconds",
];

fn own(controller: &str) -> Labels {
    vec![("controller".to_owned(), controller.to_owned())]
}

fn register_gauge(metrics: &MetricsRegistry, name: &str, controller: &str, value: i64) -> Registered {
    let family = Family::<Labels, Gauge>::default();
    family.get_or_create(&own(controller)).set(value);
    metrics.register(|part| part.register(name, "A gauge", family))
}

fn register_histogram(registry: &mut Registry, name: &str, make: fn() -> Histogram) {
    let family = Family::<Labels, Histogram, fn() -> Histogram>::new_with_constructor(make);
    family.get_or_create(&own("web")).observe(0.3);
    registry.register(name, "A histogram", family);
}

/// The bounds of a histogram's buckets, as they are written.
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
fn guarantee_3_counters_and_gauges_have_the_names_that_dashboards_know() {
    let metrics = MetricsRegistry::new();
    let _registered = metrics.register(|registry| {
        for name in COUNTERS {
            let family = Family::<Labels, Counter>::default();
            family.get_or_create(&own("web")).inc();
            registry.register(name, "A counter", family);
        }
        for name in GAUGES {
            let family = Family::<Labels, Gauge>::default();
            family.get_or_create(&own("web")).set(7);
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
    assert_eq!(text.len(), expected.concat().len(), "nothing else in {text}");
}

#[test]
fn guarantee_3_a_counter_ends_in_one_total_whether_or_not_it_was_given() {
    for name in ["webs_made", "webs_made_total"] {
        let metrics = MetricsRegistry::new();
        metrics
            .register(|part| part.register(name, "Made", Counter::<u64>::default()))
            .forever();
        let text = "# HELP webs_made_total Made.\n# TYPE webs_made_total counter\nwebs_made_total 0\n";
        assert_eq!(metrics.encode(Exposition::Text), text);
        // OpenMetrics leaves the ending out of the family's name.
        let open = "# HELP webs_made Made.\n# TYPE webs_made counter\nwebs_made_total 0\n# EOF\n";
        assert_eq!(metrics.encode(Exposition::OpenMetrics), open);
    }
}

// D26
#[steersman_testing::test]
async fn guarantee_3_histograms_of_controllers_have_the_buckets_that_dashboards_know(fixture: Fixture) {
    let manager = manager_of(cluster(&fixture).await).await;
    let log = Log::new();
    Controller::of::<ConfigMap>("maps")
        .add_to(&manager, log.clone())
        .unwrap();
    let running = run(&manager);
    let client = manager.client().unwrap();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    log.saw("a", Some("1")).await;
    running.stop().await.unwrap();
    let text = manager.metrics().encode(Exposition::Text);
    // As Go writes them.
    let reconcile = "0.005 0.01 0.025 0.05 0.1 0.15 0.2 0.25 0.3 0.35 0.4 0.45 0.5 0.6 0.7 0.8 0.9 1 1.25 1.5 1.75 2 2.5 3 3.5 4 4.5 5 6 7 8 9 10 15 20 25 30 40 50 60 +Inf";
    let queue =
        "1e-08 1e-07 1e-06 9.999999999999999e-06 9.999999999999999e-05 0.001 0.01 0.1 1 10 100 1000 +Inf";
    for (name, expected) in [
        ("controller_runtime_reconcile_time_seconds", reconcile),
        ("workqueue_queue_duration_seconds", queue),
        ("workqueue_work_duration_seconds", queue),
    ] {
        assert_eq!(bounds(&text, name).join(" "), expected, "{name}");
    }
}

#[test]
fn a_histogram_shows_its_count_its_sum_and_its_buckets() {
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
fn guarantee_1_what_was_registered_goes_with_its_guard() {
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
    other.forever();
    assert_eq!(metrics.encode(Exposition::Text), left);
}

#[test]
fn guarantee_2_of_two_that_are_the_same_the_earlier_is_shown() {
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
fn guarantee_4_two_scrapes_of_the_same_state_are_the_same() {
    let text = || {
        let metrics = MetricsRegistry::new();
        let family = Family::<Labels, Gauge>::default();
        for number in 0..100 {
            family.get_or_create(&own(&number.to_string())).set(number);
        }
        metrics
            .register(|part| part.register("workers", "A gauge", family))
            .forever();
        metrics.encode(Exposition::Text)
    };
    // Each family has a hash map of its own, in an order of its own.
    assert_eq!(text(), text());
}

/// Asks the registry while it is asked, and counts.
#[derive(Debug)]
struct Asking(MetricsRegistry, Arc<AtomicUsize>);

impl Collector for Asking {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let asked = self.1.fetch_add(1, Ordering::SeqCst);
        let inner = self.0.register(|_| {});
        let asked = ConstGauge::new(i64::try_from(asked).unwrap());
        asked.encode(encoder.encode_descriptor("asked", "How often.", None, asked.metric_type())?)?;
        drop(inner);
        Ok(())
    }
}

#[test]
fn guarantee_6_a_collector_is_asked_at_each_scrape_and_without_a_lock() {
    let (metrics, asked) = (MetricsRegistry::new(), Arc::default());
    let asking = Asking(metrics.clone(), Arc::clone(&asked));
    let _registered = metrics.register(|part| part.register_collector(Box::new(asking)));
    assert!(metrics.encode(Exposition::Text).ends_with("\nasked 0\n"));
    assert!(metrics.encode(Exposition::Text).ends_with("\nasked 1\n"));
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[derive(Debug)]
struct Broken;

impl Collector for Broken {
    fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        Err(fmt::Error)
    }
}

#[test]
fn a_collector_that_fails_hides_no_other() {
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
fn a_process_shows_its_start_its_time_its_memory_and_its_files() {
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
    let _files: Vec<_> = (0..50)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    // Other tests of this process open and close some meanwhile.
    assert!(value("process_open_fds") > before + 25.0);
    assert!(
        metrics
            .encode(Exposition::Text)
            .contains("# TYPE process_cpu_seconds_total counter\n")
    );
}
