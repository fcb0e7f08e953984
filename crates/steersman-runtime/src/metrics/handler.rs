// SPDX-License-Identifier: Apache-2.0
//! Metrics of each of several handlers of a controller.

use std::{collections::HashMap, sync::MutexGuard, time::Duration};

use prometheus_client::encoding::EncodeLabelSet;

use super::{Ended, Metrics};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HandlerLabels {
    controller: String,
    handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HandlerResultLabels {
    controller: String,
    handler: String,
    result: &'static str,
}

/// Series of one of several handlers of a controller. Dropped with the last holder of the same labels.
#[derive(Debug)]
pub(crate) struct HandlerSeries {
    labels: HandlerLabels,
    families: Metrics,
}

impl HandlerSeries {
    pub(crate) fn ran(&self, ended: Ended, took: Duration) {
        let families = &self.families.0;
        let (_, result) = Ended::ALL[ended as usize];
        families
            .handler_runs
            .get_or_create(&self.labels.with(result))
            .inc();
        let seconds = families.handler_seconds.get_or_create(&self.labels);
        seconds.observe(took.as_secs_f64());
    }
}

impl Drop for HandlerSeries {
    fn drop(&mut self) {
        let families = &self.families.0;
        // Held to the end, so that a handler that is added now gets new series.
        let mut holders = self.families.holders();
        if let Some(others) = holders.get_mut(&self.labels).filter(|holders| **holders > 1) {
            *others -= 1;
            return;
        }
        holders.remove(&self.labels);
        families.handler_seconds.remove(&self.labels);
        for (_, result) in Ended::ALL {
            families.handler_runs.remove(&self.labels.with(result));
        }
    }
}

impl Metrics {
    /// Returns the series of one of several handlers of a controller.
    pub(crate) fn handler(&self, controller: &str, handler: &str) -> HandlerSeries {
        let labels = HandlerLabels {
            controller: controller.to_owned(),
            handler: handler.to_owned(),
        };
        *self.holders().entry(labels.clone()).or_default() += 1;
        HandlerSeries {
            labels,
            families: self.clone(),
        }
    }

    /// Number of holders of series by labels.
    fn holders(&self) -> MutexGuard<'_, HashMap<HandlerLabels, usize>> {
        self.0.handlers.lock()
    }
}

impl HandlerLabels {
    fn with(&self, result: &'static str) -> HandlerResultLabels {
        HandlerResultLabels {
            controller: self.controller.clone(),
            handler: self.handler.clone(),
            result,
        }
    }
}
