// SPDX-License-Identifier: Apache-2.0
//! A registry of metrics and the formats that scrapers read.
//!
//! There is no global registry: each program creates a [`MetricsRegistry`]. Metrics are those of `prometheus-client`.
//!
//! # Guarantees
//! 1. Metrics stay registered until their guard is dropped.
//! 2. Several parts of a program can register the same name, each with its own labels: the output has one family with the
//!    samples of all. If two samples have the same labels, or two families different types, the output has the one that was
//!    registered first, and the log has one warning.
//! 3. Names are those of controller-runtime: a counter ends in exactly one `_total`, with or without it in the registered name.
//!    `le` has the number format of Go, because Prometheus compares labels as text.
//! 4. Two scrapes of the same state return the same text.
//! 5. A scraper that prefers OpenMetrics gets it; others get the Prometheus text format.
//! 6. A scrape blocks neither updates nor registrations: no lock is held while metrics are read.

mod exposition;
#[cfg(target_os = "linux")]
mod process;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use steersman_core::Mutex;

use prometheus_client::{encoding::text::encode_registry, registry::Registry};

pub use exposition::Exposition;
pub use server::{MetricsServer, MetricsServerError};

use crate::RegistrationGuard;
use exposition::Families;

/// A registry of metrics. Clones share the registry.
///
/// ```
/// use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
/// use steersman_endpoints::{Exposition, MetricsRegistry};
///
/// let metrics = MetricsRegistry::new();
/// let (created, open) = (Counter::<u64>::default(), Gauge::<i64>::default());
/// let guard = metrics.register(|registry| {
///     registry.register("webs_created_total", "Number of webs created", created.clone());
///     registry.register("webs_open", "Number of open webs", open.clone());
/// });
/// created.inc();
/// assert!(metrics.encode(Exposition::Text).contains("\nwebs_created_total 1\n"));
///
/// drop(guard);
/// assert_eq!(metrics.encode(Exposition::Text), "");
/// ```
#[derive(Clone, Default)]
pub struct MetricsRegistry(Arc<Mutex<Parts>>);

/// One `prometheus-client` registry per registration, because that type cannot remove metrics.
#[derive(Default)]
struct Parts {
    /// In the order of registration.
    by_id: BTreeMap<u64, Arc<Registry>>,
    next_id: u64,
    /// Names of metrics that a warning was logged for.
    warned: BTreeSet<String>,
}

impl MetricsRegistry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers metrics and collectors. Dropping the guard removes them.
    pub fn register(&self, fill: impl FnOnce(&mut Registry)) -> RegistrationGuard {
        let mut part = Registry::default();
        fill(&mut part);
        let mut parts = self.0.lock();
        let id = parts.next_id;
        parts.next_id += 1;
        parts.by_id.insert(id, Arc::new(part));
        drop(parts);
        let parts = Arc::downgrade(&self.0);
        RegistrationGuard::new(move || {
            if let Some(parts) = parts.upgrade() {
                // Dropping a collector can run user code, so the lock is released first.
                let part = parts.lock().by_id.remove(&id);
                drop(part);
            }
        })
    }

    /// Registers metrics of the process: start time, CPU time, memory and open files. Linux only; elsewhere it registers
    /// nothing.
    pub fn register_process(&self) -> RegistrationGuard {
        self.register(|registry| {
            #[cfg(target_os = "linux")]
            registry.register_collector(Box::new(process::Process));
            #[cfg(not(target_os = "linux"))]
            let _ = registry;
        })
    }

    /// Returns the metrics as text.
    #[must_use]
    pub fn encode(&self, exposition: Exposition) -> String {
        let parts: Vec<Arc<Registry>> = self.0.lock().by_id.values().cloned().collect();
        let mut families = Families::default();
        let mut failed = 0;
        for part in parts {
            let mut text = String::new();
            match encode_registry(&mut text, &part) {
                Ok(()) => families.read(&text),
                Err(fmt::Error) => failed += 1,
            }
        }
        // No metric has an empty name, so it stands for failed collectors.
        if failed > 0 && self.is_first_warning("") {
            tracing::warn!(registrations = failed, "failed to encode metrics; omitting them");
        }
        for metric in families.conflicts() {
            if self.is_first_warning(metric) {
                tracing::warn!(
                    metric,
                    "metric is registered twice; omitting the later registration"
                );
            }
        }
        families.write(exposition)
    }

    fn is_first_warning(&self, name: &str) -> bool {
        self.0.lock().warned.insert(name.to_owned())
    }
}

impl fmt::Debug for MetricsRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsRegistry")
            .field("registrations", &self.0.lock().by_id.len())
            .finish_non_exhaustive()
    }
}
