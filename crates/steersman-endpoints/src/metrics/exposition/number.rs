// SPDX-License-Identifier: Apache-2.0
//! Formats numbers as Go does.

use super::Exposition;

/// Formats the upper bound of a bucket as Go's client does: `1` and `1e-08` in the text format, `1.0` in OpenMetrics.
///
/// Prometheus compares labels as text: a rule with `le="1"` must match metrics of Go and of Rust programs.
pub(super) fn bound(text: &str, exposition: Exposition) -> String {
    let Ok(number) = text.parse::<f64>() else {
        return text.to_owned();
    };
    if number.is_infinite() || number.is_nan() {
        return text.to_owned();
    }
    let mut text = shortest(number);
    if exposition == Exposition::OpenMetrics && !text.contains(['.', 'e']) {
        text.push_str(".0");
    }
    text
}

/// Formats a number as `strconv.FormatFloat(number, 'g', -1, 64)` does.
fn shortest(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    // Exponents in this range are written out.
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_numbers_like_go() {
        // Values of Go's `strconv` and of a controller-runtime program.
        let cases = [
            (1.0, "1"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e-8, "1e-08"),
            (9.999_999_999_999_999e-6, "9.999999999999999e-06"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (16_777_216.0, "1.6777216e+07"),
            (-2.5, "-2.5"),
            (1e100, "1e+100"),
        ];
        for (number, text) in cases {
            assert_eq!(shortest(number), text);
        }
    }

    #[test]
    fn open_metrics_bounds_have_a_decimal_point() {
        assert_eq!(bound("1.0", Exposition::Text), "1");
        assert_eq!(bound("1.0", Exposition::OpenMetrics), "1.0");
        assert_eq!(bound("1e-8", Exposition::OpenMetrics), "1e-08");
        assert_eq!(bound("+Inf", Exposition::Text), "+Inf");
    }
}
