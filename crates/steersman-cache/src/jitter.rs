// SPDX-License-Identifier: Apache-2.0
//! Durations with jitter.

use std::time::Duration;

/// Multiplies a duration, capped at the longest duration: [`Duration::MAX`] means never and must not panic.
pub(crate) fn scaled(time: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_durations_saturate() {
        assert_eq!(scaled(Duration::from_secs(10), 1.5), Duration::from_secs(15));
        for factor in [1.0, 1.1, 2.0] {
            assert_eq!(scaled(Duration::MAX, factor), Duration::MAX);
        }
        assert!(scaled(Duration::MAX, 0.9) < Duration::MAX);
    }
}
