// SPDX-License-Identifier: Apache-2.0
//! Metric series of a controller, which exist only once a manager runs it.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::metrics::Series;

/// Counts keys that are added before the series exist, and adds them to the series later. Other values need a run.
#[derive(Debug, Default)]
pub(crate) struct LateSeries {
    series: OnceLock<Series>,
    /// Keys that were added and are not counted yet.
    added: AtomicU64,
}

impl LateSeries {
    pub(crate) fn get(&self) -> Option<&Series> {
        self.series.get()
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> Series) -> &Series {
        let series = self.series.get_or_init(make);
        self.count_added(series);
        series
    }

    fn count_added(&self, series: &Series) {
        match self.added.swap(0, Ordering::AcqRel) {
            0 => {}
            keys => steersman_queue::Metrics::added(series, keys),
        }
    }
}

impl steersman_queue::Metrics for LateSeries {
    fn added(&self, keys: u64) {
        self.added.fetch_add(keys, Ordering::AcqRel);
        // This method or `get_or_init`, whichever runs last, counts the keys.
        if let Some(series) = self.get() {
            self.count_added(series);
        }
    }

    fn taken(&self, queued: Duration) {
        if let Some(series) = self.get() {
            series.taken(queued);
        }
    }

    fn finished(&self, worked: Duration) {
        if let Some(series) = self.get() {
            series.finished(worked);
        }
    }

    fn retried(&self) {
        if let Some(series) = self.get() {
            series.retried();
        }
    }
}
