// SPDX-License-Identifier: Apache-2.0
//! Metrics that reconcilers declare. Their values are computed when they are read.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::Metrics;

/// A metric of one controller; see [`Declarations::gauge`](crate::Declarations::gauge).
#[derive(Clone)]
pub(crate) struct DeclaredMetric {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// A label beside the name of the controller.
    pub(crate) label: Option<(&'static str, &'static str)>,
    pub(crate) value: DeclaredValue,
}

#[derive(Clone)]
pub(crate) enum DeclaredValue {
    Counter(Arc<dyn Fn() -> u64 + Send + Sync>),
    Gauge(Arc<dyn Fn() -> f64 + Send + Sync>),
}

impl fmt::Debug for DeclaredMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeclaredMetric").field(&self.name).finish()
    }
}

/// Collects the declared metrics of all controllers.
#[derive(Debug)]
pub(super) struct DeclaredMetrics(pub(super) Metrics);

impl Collector for DeclaredMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut by_name = BTreeMap::<_, Vec<(String, DeclaredMetric)>>::new();
        for (controller, metrics) in &*self.0.0.declared.lock() {
            for metric in metrics {
                let same_name = by_name.entry(metric.name).or_default();
                same_name.push((controller.clone(), metric.clone()));
            }
        }
        for (name, metrics) in by_name {
            let Some((_, first)) = metrics.first() else {
                continue;
            };
            let kind = match first.value {
                DeclaredValue::Counter(_) => MetricType::Counter,
                DeclaredValue::Gauge(_) => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, first.help, None, kind)?;
            for (controller, metric) in &metrics {
                let labels = [("controller", controller.as_str())].into_iter();
                let labels: Vec<_> = labels.chain(metric.label).collect();
                let series = family.encode_family(&labels)?;
                match &metric.value {
                    DeclaredValue::Counter(value) => ConstCounter::new(value()).encode(series)?,
                    DeclaredValue::Gauge(value) => ConstGauge::new(value()).encode(series)?,
                }
            }
        }
        Ok(())
    }
}
