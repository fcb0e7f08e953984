// SPDX-License-Identifier: Apache-2.0
//! Measured times, as text and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

/// Duration of one operation, measured once or several times.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    name: &'static str,
    /// Sorted by duration.
    samples: Vec<Duration>,
}

impl Measure {
    pub(crate) fn new(name: &'static str, samples: impl IntoIterator<Item = Duration>) -> Self {
        let mut samples: Vec<_> = samples.into_iter().collect();
        samples.sort();
        Self { name, samples }
    }

    /// Returns the duration within which this percentage of the samples was done.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.samples.len() * percent).div_ceil(100).max(1);
        self.samples.get(rank - 1).copied().unwrap_or_default()
    }

    /// Returns one time, or percentiles of several.
    pub(crate) fn text(&self) -> String {
        if let [only] = self.samples[..] {
            return text(only);
        }
        let [half, most, all] = [50, 90, 100].map(|percent| text(self.percentile(percent)));
        format!("p50 {half}, p90 {most}, max {all} of {}", self.samples.len())
    }

    pub(crate) fn json(&self, step: &str) -> Value {
        let [half, most, all] =
            [50, 90, 100].map(|percent| (self.percentile(percent).as_secs_f64() * 1e6).round() / 1e3);
        json!({
            "step": step, "measure": self.name, "unit": "ms", "count": self.samples.len(),
            "p50": half, "p90": most, "max": all,
        })
    }
}

/// Formats a time with three significant digits.
pub(crate) fn text(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        ..10.0 => format!("{millis:.2} ms"),
        ..100.0 => format!("{millis:.1} ms"),
        ..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.2} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let measure = Measure::new("x", (1..=20).rev().map(Duration::from_millis));
        assert_eq!(measure.text(), "p50 10.0 ms, p90 18.0 ms, max 20.0 ms of 20");
        let json = measure.json("step");
        assert_eq!(
            (&json["p50"], &json["max"], &json["count"]),
            (&json!(10.0), &json!(20.0), &json!(20))
        );
    }

    #[test]
    fn shows_a_single_time_unchanged() {
        let of = |micros| Measure::new("x", [Duration::from_micros(micros)]).text();
        assert_eq!(
            [of(1_234), of(12_340), of(123_400), of(3_141_592)],
            ["1.23 ms", "12.3 ms", "123 ms", "3.14 s"]
        );
    }
}
