// SPDX-License-Identifier: Apache-2.0
//! Metrics of clusters and their caches, collected at each scrape.

mod rest_client;

use std::{fmt, sync::Arc};

use crate::{ClusterSet, RunnableStatus, RuntimeContext, StatusRegistry};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use steersman_cache::Stats;
use steersman_cluster::{Cluster, ClusterState, EventCounts};
use steersman_core::Presence;

/// Registers the collector.
pub(super) fn register(runtime: &Arc<RuntimeContext>, registry: &mut Registry) {
    registry.register_collector(Box::new(Collected {
        cluster_set: runtime.clusters().clone(),
        statuses: runtime.statuses().clone(),
    }));
}

#[derive(Debug)]
struct Collected {
    cluster_set: ClusterSet,
    statuses: StatusRegistry,
}

/// A metric of an informer: name, help, type and value.
type Figure = (&'static str, &'static str, MetricType, fn(&Stats) -> f64);

const METRICS: [Figure; 12] = [
    (
        "steersman_cache_objects",
        "Objects in the cache",
        MetricType::Gauge,
        |stats| stats.objects as f64,
    ),
    (
        "steersman_cache_bytes",
        "Bytes of the objects in the cache",
        MetricType::Gauge,
        |stats| stats.bytes as f64,
    ),
    (
        "steersman_cache_decoded_bytes",
        "Bytes of decoded objects that the cache keeps in addition",
        MetricType::Gauge,
        |stats| stats.decoded_bytes as f64,
    ),
    (
        "steersman_cache_synced",
        "1 if the cache has completed a list, else 0",
        MetricType::Gauge,
        |stats| f64::from(u8::from(stats.synced)),
    ),
    (
        "steersman_cache_last_event_age_seconds",
        "Time since the last event, zero before the first",
        MetricType::Gauge,
        |stats| stats.silent_for.unwrap_or_default().as_secs_f64(),
    ),
    (
        "steersman_cache_events",
        "Watch events that were dispatched to handlers",
        MetricType::Counter,
        |stats| stats.events as f64,
    ),
    (
        "steersman_cache_lists",
        "Lists that were started",
        MetricType::Counter,
        |stats| stats.lists as f64,
    ),
    (
        "steersman_cache_relists",
        "Lists that were started after the first complete one",
        MetricType::Counter,
        |stats| stats.relists as f64,
    ),
    (
        "steersman_cache_watch_restarts",
        "Watches that were opened after the first",
        MetricType::Counter,
        |stats| stats.watch_restarts as f64,
    ),
    (
        "steersman_cache_watches",
        "Watches that were opened",
        MetricType::Counter,
        |stats| stats.watches as f64,
    ),
    (
        "steersman_cache_invalid_objects",
        "Objects that could not be parsed",
        MetricType::Counter,
        |stats| stats.invalid as f64,
    ),
    (
        "steersman_cache_decode_failures",
        "Failures to decode an object as the requested type",
        MetricType::Counter,
        |stats| stats.decode_failures as f64,
    ),
];

/// A metric of the handlers of an informer.
type HandlerFigure = (&'static str, &'static str, fn(&Stats) -> &[(String, u64)]);

const HANDLER_FIGURES: [HandlerFigure; 2] = [
    (
        "steersman_cache_slow_handlers",
        "Slow calls of event handlers, by handler",
        |stats| &stats.slow_handlers,
    ),
    (
        "steersman_cache_handler_panics",
        "Panics of event handlers and predicates, by handler",
        |stats| &stats.panicked_handlers,
    ),
];

/// A metric of the event recorders of a cluster.
type EventFigure = (&'static str, &'static str, fn(&EventCounts) -> u64);

const EVENT_FIGURES: [EventFigure; 2] = [
    (
        "steersman_events_recorded",
        "Events about objects that were recorded, repetitions included",
        |counts| counts.recorded,
    ),
    (
        "steersman_events_dropped",
        "Events about objects that were not written: too many, rejected, or fenced",
        |counts| counts.dropped,
    ),
];

/// Values of an informer, with its labels. A kind can have several informers, each with another scope.
struct Informed {
    cluster: String,
    kind: String,
    scope: String,
    stats: Stats,
}

impl Informed {
    fn of(cluster: &Cluster) -> impl Iterator<Item = Self> {
        let informers = cluster.cache().informers().into_iter();
        informers.map(|informer| Self {
            cluster: cluster.name().to_string(),
            kind: informer.resource().to_string(),
            scope: informer.scope().to_string(),
            stats: informer.stats(),
        })
    }

    fn labels(&self) -> [(&str, &str); 3] {
        [
            ("cluster", &self.cluster),
            ("kind", &self.kind),
            ("scope", &self.scope),
        ]
    }
}

impl Collector for Collected {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A cluster that is being removed is included until it is closed.
        let clusters = self.cluster_set.all_and_leaving();
        states(&clusters, &mut encoder)?;
        self.caches(&clusters, &mut encoder)?;
        rest_client::encode(&clusters, &mut encoder)?;
        events(&clusters, &mut encoder)?;
        presences(&clusters, &mut encoder)?;
        self.statuses(&mut encoder)
    }
}

impl Collected {
    fn caches(&self, clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let informers: Vec<Informed> = clusters.iter().flat_map(Informed::of).collect();
        for (name, help, metric_type, figure) in METRICS {
            let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            for informer in &informers {
                let value = figure(&informer.stats);
                sample(metric.encode_family(&informer.labels())?, metric_type, value)?;
            }
        }
        for (name, help, figure) in HANDLER_FIGURES {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for informer in &informers {
                for (handler, times) in figure(&informer.stats) {
                    let [cluster, kind, scope] = informer.labels();
                    let labels = [cluster, kind, scope, ("handler", handler.as_str())];
                    sample(metric.encode_family(&labels)?, MetricType::Counter, *times as f64)?;
                }
            }
        }
        Ok(())
    }

    fn statuses(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Status of a runnable: 1 for its current state";
        let mut metric =
            encoder.encode_descriptor("steersman_runnable_state", help, None, MetricType::Gauge)?;
        for (name, status) in self.statuses.all() {
            let state = match status {
                RunnableStatus::Ready => "ready",
                RunnableStatus::Dormant { .. } => "dormant",
                RunnableStatus::PartiallyDegraded { .. } => "partially_degraded",
                RunnableStatus::Degraded { .. } => "degraded",
                _ => "waiting",
            };
            let labels = [("name", name.as_str()), ("state", state)];
            sample(metric.encode_family(&labels)?, MetricType::Gauge, 1.0)?;
        }
        Ok(())
    }
}

fn states(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Status of a cluster: 1 for its current state, 0 for the others";
    let mut metric = encoder.encode_descriptor("steersman_cluster_state", help, None, MetricType::Gauge)?;
    for cluster in clusters {
        let state = cluster.state();
        for name in ClusterState::NAMES {
            let labels = [("cluster", cluster.name().as_str()), ("state", name)];
            let value = f64::from(u8::from(name == state.name()));
            sample(metric.encode_family(&labels)?, MetricType::Gauge, value)?;
        }
    }
    Ok(())
}

/// Writes the counters of recorders. Caches count other events: those of their watches.
fn events(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for (name, help, figure) in EVENT_FIGURES {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for cluster in clusters {
            let value = figure(&cluster.events()) as f64;
            let labels = [("cluster", cluster.name().as_str())];
            sample(metric.encode_family(&labels)?, MetricType::Counter, value)?;
        }
    }
    Ok(())
}

fn presences(clusters: &[Cluster], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Presence of a kind that a runnable waits for: 1 present, 0 absent, -1 unknown";
    let mut metric = encoder.encode_descriptor("steersman_kind_presence", help, None, MetricType::Gauge)?;
    for cluster in clusters {
        for (resource, presence_status) in cluster.presences() {
            let value = match presence_status.presence {
                Presence::Present => 1.0,
                Presence::Absent => 0.0,
                Presence::Unknown => -1.0,
            };
            let kind = resource.to_string();
            let labels = [("cluster", cluster.name().as_str()), ("kind", kind.as_str())];
            sample(metric.encode_family(&labels)?, MetricType::Gauge, value)?;
        }
    }
    Ok(())
}

fn sample(encoder: MetricEncoder<'_>, metric_type: MetricType, value: f64) -> fmt::Result {
    match metric_type {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(value).encode(encoder),
    }
}
