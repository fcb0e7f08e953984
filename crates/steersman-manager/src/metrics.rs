// SPDX-License-Identifier: Apache-2.0
//! What is measured, and how scrapers read it.
//!
//! A [`MetricsRegistry`] belongs to whoever made it; there is no global one. Metrics are those of `prometheus-client`.
//!
//! # Guarantees
//! 1. What was registered is shown until its guard drops.
//! 2. Several parts of a program may register the same name, each for its own labels: it is shown once, with the samples
//!    of all. Where two have the same labels too, or different types, the earlier one is shown, and the log says so once.
//! 3. Names come out as they are known from controller-runtime: a counter ends in one `_total`, whether or not it was
//!    given; `le` is written as Go writes it, since Prometheus compares labels as text.
//! 4. Two scrapes of the same state are the same text.
//! 5. A scraper gets OpenMetrics if it prefers that, and the text format of Prometheus otherwise.
//! 6. Nobody waits for a scrape: no lock is held while metrics are read.

mod door;
mod exposition;
#[cfg(target_os = "linux")]
mod process;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prometheus_client::{encoding::text::encode_registry, registry::Registry};

pub use exposition::Exposition;
pub use server::{MetricsServer, MetricsServerError};

use crate::Registered;
use exposition::Families;

/// The metrics of a program. Clones are the same registry.
///
/// ```
/// use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
/// use steersman_manager::{Exposition, MetricsRegistry};
///
/// let metrics = MetricsRegistry::new();
/// let (made, open) = (Counter::<u64>::default(), Gauge::<i64>::default());
/// let registered = metrics.register(|registry| {
///     registry.register("webs_made_total", "How many webs were made", made.clone());
///     registry.register("webs_open", "How many webs are open", open.clone());
/// });
/// made.inc();
/// assert!(metrics.encode(Exposition::Text).contains("\nwebs_made_total 1\n"));
///
/// drop(registered);
/// assert_eq!(metrics.encode(Exposition::Text), "");
/// ```
#[derive(Clone, Default)]
pub struct MetricsRegistry(Arc<Mutex<Parts>>);

#[derive(Default)]
struct Parts {
    by_age: BTreeMap<u64, Arc<Registry>>,
    next: u64,
    /// Names that the log has complained about.
    told: BTreeSet<String>,
}

impl MetricsRegistry {
    /// A registry without metrics.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds metrics and collectors, which are shown until the guard drops.
    ///
    /// They are registered with a registry of `prometheus-client` that holds just them, since that one has no way to
    /// remove what it has.
    pub fn register(&self, fill: impl FnOnce(&mut Registry)) -> Registered {
        let mut part = Registry::default();
        fill(&mut part);
        let mut parts = self.lock();
        let age = parts.next;
        parts.next += 1;
        parts.by_age.insert(age, Arc::new(part));
        drop(parts);
        let parts = Arc::downgrade(&self.0);
        Registered::new(move || {
            if let Some(parts) = parts.upgrade() {
                // What a collector holds may do anything when it drops, so it does it outside of the lock.
                let part = Self(parts).lock().by_age.remove(&age);
                drop(part);
            }
        })
    }

    /// Adds what dashboards show of a process: its start, processor time, memory and open files.
    ///
    /// They come from `/proc`, so that other systems than Linux have none.
    pub fn register_process(&self) -> Registered {
        self.register(|registry| {
            #[cfg(target_os = "linux")]
            registry.register_collector(Box::new(process::Process));
            #[cfg(not(target_os = "linux"))]
            let _ = registry;
        })
    }

    /// The present state as text.
    #[must_use]
    pub fn encode(&self, exposition: Exposition) -> String {
        let parts: Vec<Arc<Registry>> = self.lock().by_age.values().cloned().collect();
        let mut families = Families::default();
        let mut broken = 0;
        for part in parts {
            let mut text = String::new();
            match encode_registry(&mut text, &part) {
                Ok(()) => families.read(&text),
                Err(fmt::Error) => broken += 1,
            }
        }
        // No metric has this name.
        if broken > 0 && self.is_news("") {
            tracing::warn!(parts = broken, "metrics cannot be encoded and are left out");
        }
        for metric in families.conflicts() {
            if self.is_news(metric) {
                tracing::warn!(metric, "a metric is registered twice; the later one is left out");
            }
        }
        families.write(exposition)
    }

    fn is_news(&self, name: &str) -> bool {
        self.lock().told.insert(name.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MetricsRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsRegistry")
            .field("parts", &self.lock().by_age.len())
            .finish_non_exhaustive()
    }
}
