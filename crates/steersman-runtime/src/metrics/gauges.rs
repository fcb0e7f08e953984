// SPDX-License-Identifier: Apache-2.0
//! Gauges of the queues of controllers.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use steersman_queue::Depth;

use super::{Metrics, Queued};

/// Gauges of all queues, collected at each scrape.
#[derive(Debug)]
pub(super) struct Gauges(Metrics);

impl Gauges {
    pub(super) fn of(metrics: &Metrics) -> Self {
        Self(metrics.clone())
    }

    /// Encodes one gauge of all queues.
    fn encode_each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Depth) -> f64,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (controller, queue) in self.living() {
            let labels = [("name", controller.as_str()), ("controller", controller.as_str())];
            let gauge = ConstGauge::new(value(&queue.depth()));
            gauge.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn living(&self) -> Vec<(String, Arc<dyn Queued>)> {
        let queues = self.0.queues();
        let living = queues
            .iter()
            .filter_map(|(name, queue)| Some((name.clone(), queue.upgrade()?)));
        living.collect()
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metric =
            encoder.encode_descriptor("workqueue_depth", "Keys that are ready", None, MetricType::Gauge)?;
        for (controller, queue) in self.living() {
            for (priority, keys) in queue.depth_by_priority() {
                let priority = priority.to_string();
                let labels = [
                    ("name", controller.as_str()),
                    ("controller", controller.as_str()),
                    ("priority", priority.as_str()),
                ];
                let gauge = ConstGauge::new(keys as f64);
                gauge.encode(metric.encode_family(&labels)?)?;
            }
        }
        self.encode_each(
            &mut encoder,
            "workqueue_unfinished_work_seconds",
            "Total time that the keys in flight have been worked on",
            |depth| depth.unfinished_work().as_secs_f64(),
        )?;
        self.encode_each(
            &mut encoder,
            "workqueue_longest_running_processor_seconds",
            "Time that the oldest key in flight has been worked on",
            |depth| depth.longest_running().as_secs_f64(),
        )?;
        self.encode_each(
            &mut encoder,
            "controller_warm_pending",
            "Keys that wait for leadership",
            |depth| depth.warm() as f64,
        )
    }
}
