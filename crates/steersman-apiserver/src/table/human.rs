// SPDX-License-Identifier: Apache-2.0
//! Human-readable durations with two or three figures.

use std::time::SystemTime;

/// Formats the time since `then`.
pub(super) fn since(then: SystemTime, now: SystemTime) -> String {
    match now.duration_since(then) {
        Ok(passed) => duration(passed.as_secs()),
        // The clocks of two machines can differ slightly.
        Err(ahead) if ahead.duration().as_secs() < 2 => "0s".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats a duration.
pub(super) fn duration(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    let pair = |first: u64, of: char, second: u64, unit: char| match second {
        0 => format!("{first}{of}"),
        _ => format!("{first}{of}{second}{unit}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, 'd', hours % 24, 'h'),
        () if days < 2 * 365 => format!("{days}d"),
        () if days < 8 * 365 => pair(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_coarser() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (3600, "60m"),
            (4 * 3600 + 60, "4h1m"),
            (9 * 3600, "9h"),
            (3 * 86_400 + 3600, "3d1h"),
            (100 * 86_400, "100d"),
            (3 * 365 * 86_400 + 86_400, "3y1d"),
            (9 * 365 * 86_400, "9y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected);
        }
    }
}
