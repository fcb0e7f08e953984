// SPDX-License-Identifier: Apache-2.0
//! Resource quantities in the canonical form of the real server.
//!
//! Hand-written: existing crates parse quantities for arithmetic and do not keep Go's choice of suffix.

pub(crate) mod amount;

/// Scales of the decimal suffixes, as powers of ten.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
/// Scales of the binary suffixes, as powers of two.
const BINARY: [(&str, u32); 6] = [
    ("Ki", 10),
    ("Mi", 20),
    ("Gi", 30),
    ("Ti", 40),
    ("Pi", 50),
    ("Ei", 60),
];

/// Go's error for a text that is not a quantity.
const FORMAT_WRONG: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NUMERIC: &str = "unable to parse numeric part of quantity";
const SUFFIX: &str = "unable to parse quantity's suffix";

/// Number of digits that always fit into 64 bits.
const SHORT: usize = 18;

/// The format of the exponent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Scientific,
    Binary,
}

/// The smallest power of ten that Go keeps; smaller parts are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Nano,
    /// Precision of resource lists.
    Milli,
}

impl Precision {
    fn power(self) -> i32 {
        match self {
            Self::Nano => -9,
            Self::Milli => -3,
        }
    }
}

/// Returns the form in which Go writes a quantity.
///
/// # Errors
/// Returns the message of Go's parser.
pub(crate) fn canonical(text: &str, precision: Precision) -> Result<String, &'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Err(FORMAT_WRONG);
    }
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, rest) = leading(unsigned.trim_start_matches('0'), |c| c.is_ascii_digit());
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => leading(rest, |c| c.is_ascii_digit()),
        None => ("", rest),
    };
    check_suffix(suffix)?;
    let (format, power) = power(suffix).ok_or(SUFFIX)?;
    let whole = if whole.is_empty() { "0" } else { whole };
    let digits = format!("{whole}{fraction}");
    // As in Go, an exponent beyond 32 bits wraps around.
    let places = i32::try_from(fraction.len()).map_err(|_| NUMERIC)?;
    let exponent = if format == Format::Binary { 0 } else { power }.wrapping_sub(places);
    // Go has a fast path for numbers that always fit into 64 bits, and keeps the text of those that it considers
    // canonical.
    let (is_short, is_kept) = match format {
        Format::Binary => {
            let spare = 14_i32 - i32::try_from(whole.len()).unwrap_or(i32::MAX) - power * 3 / 10;
            let is_odd = digits.parse().is_ok_and(|value: i64| value & 7 != 0);
            (fraction.is_empty() && spare >= 0, is_odd)
        }
        _ => {
            let is_canonical = exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0');
            (digits.len() <= SHORT && exponent >= -9, is_canonical)
        }
    };
    if is_short && is_kept && exponent >= precision.power() {
        return Ok(text.to_owned());
    }
    let number = unsigned.strip_suffix(suffix).unwrap_or(unsigned);
    if !is_short && matches!(number, "" | ".") {
        return Err(NUMERIC);
    }
    let mantissa: i128 = digits.parse().map_err(|_| NUMERIC)?;
    if mantissa == 0 {
        return Ok("0".to_owned());
    }
    let written = match format {
        Format::Binary => binary(mantissa, exponent, power.unsigned_abs(), precision),
        _ => decimal(mantissa, exponent, format, precision),
    };
    Ok(format!("{sign}{}", written.ok_or(NUMERIC)?))
}

/// Splits a text after its leading characters of a class.
fn leading(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()))
}

/// Checks that a suffix is letters, optionally followed by a number.
fn check_suffix(suffix: &str) -> Result<(), &'static str> {
    let (_, rest) = leading(suffix, |c| "eEinumkKMGTP".contains(c));
    let (_, rest) = leading(rest.strip_prefix(['-', '+']).unwrap_or(rest), |c| {
        c.is_ascii_digit()
    });
    if rest.is_empty() {
        Ok(())
    } else {
        Err(FORMAT_WRONG)
    }
}

/// Returns the power of a suffix: of two in the binary format, else of ten.
fn power(suffix: &str) -> Option<(Format, i32)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((Format::Decimal, *power));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((Format::Binary, i32::try_from(*power).ok()?));
    }
    let power: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let [a, b, c, d, ..] = power.to_le_bytes();
    Some((Format::Scientific, i32::from_le_bytes([a, b, c, d])))
}

/// Returns the approximate value of a canonical quantity, for comparisons.
pub(crate) fn number(text: &str) -> Option<f64> {
    let split = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some(number * f64::from(*shift).exp2());
    }
    if let Some(power) = suffix.strip_prefix(['e', 'E']).filter(|power| !power.is_empty()) {
        return Some(number * 10_f64.powi(power.parse().ok()?));
    }
    let (_, power) = DECIMAL.iter().find(|(name, _)| *name == suffix)?;
    Some(number * 10_f64.powi(*power))
}

/// Formats a non-zero number with the largest exponent that is a multiple of three, rounded up to its precision.
fn decimal(mut mantissa: i128, mut exponent: i32, format: Format, precision: Precision) -> Option<String> {
    let least = precision.power();
    if exponent < least {
        let divisor = 10_i128.checked_pow(exponent.abs_diff(least));
        // A number below the precision rounds up to the smallest one.
        mantissa = divisor.map_or(1, |divisor| {
            mantissa / divisor + i128::from(mantissa % divisor != 0)
        });
        exponent = least;
    }
    while mantissa % 10 == 0 {
        mantissa /= 10;
        exponent = exponent.wrapping_add(1);
    }
    let beyond = exponent.rem_euclid(3);
    mantissa = mantissa.checked_mul(10_i128.pow(beyond.unsigned_abs()))?;
    exponent = exponent.wrapping_sub(beyond);
    let suffix = match format {
        Format::Scientific if exponent == 0 => String::new(),
        Format::Scientific => format!("e{exponent}"),
        // Go omits a suffix that it does not know.
        _ => DECIMAL
            .iter()
            .find(|(_, power)| *power == exponent)
            .map_or_else(String::new, |(name, _)| (*name).to_owned()),
    };
    Some(format!("{mantissa}{suffix}"))
}

fn binary(mantissa: i128, exponent: i32, shift: u32, precision: Precision) -> Option<String> {
    let factor = 1_i128.checked_shl(shift)?;
    let divisor = 10_i128.checked_pow(exponent.unsigned_abs())?;
    // Go limits binary quantities to 64 bits.
    let most = i128::from(i64::MAX);
    let least = (mantissa / divisor).checked_mul(factor);
    if least.is_none_or(|least| least >= most) {
        return Some(most.to_string());
    }
    let scaled = mantissa.checked_mul(factor)?;
    let (value, is_whole) = (scaled / divisor, scaled % divisor == 0);
    if !is_whole || value < 1024 {
        return decimal(scaled, exponent, Format::Decimal, precision);
    }
    let (suffix, shift) = BINARY
        .iter()
        .rev()
        .find(|(_, shift)| value % (1_i128 << shift) == 0)
        .copied()
        .unwrap_or(("", 0));
    Some(format!("{}{suffix}", value >> shift))
}

#[cfg(test)]
mod tests {
    use super::{Precision, number};

    fn canonical(text: &str) -> Result<String, &'static str> {
        super::canonical(text, Precision::Nano)
    }

    #[test]
    fn quantities_are_compared_over_suffixes() {
        assert!(number("1500m") > number("1"));
        assert!(number("1Ki") > number("1k"));
        assert!(number("-1").unwrap() < 0.0);
        assert_eq!(number("lots"), None);
    }

    #[test]
    fn quantities_are_printed_like_in_go() {
        for (given, expected) in [
            ("1", "1"),
            ("0", "0"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("100m", "100m"),
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000", "1k"),
            ("1500", "1500"),
            ("1e3", "1e3"),
            ("2000000", "2M"),
            ("0.1Ki", "102400m"),
            ("-1", "-1"),
            ("1.500", "1.500"),
            ("1e21", "1e21"),
            ("9Ei", "9223372036854775807"),
        ] {
            assert_eq!(canonical(given).as_deref(), Ok(expected), "{given}");
        }
        for bad in ["", "x", "1.2.3", "1Zi", "--1", "1e"] {
            assert!(canonical(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn resources_are_rounded_up_to_thousandths() {
        for (given, expected) in [
            ("1n", "1m"),
            ("1e-12", "1e-3"),
            ("1000000n", "1m"),
            ("100m", "100m"),
            ("0.0001Ki", "103m"),
        ] {
            assert_eq!(
                super::canonical(given, Precision::Milli).as_deref(),
                Ok(expected),
                "{given}"
            );
        }
    }

    // The time must not depend on the exponent, even if it exceeds Go's arithmetic.
    #[test]
    fn exponents_of_any_size_are_read_at_once() {
        assert_eq!(canonical("1e-2000000000").as_deref(), Ok("1e-9"));
        assert_eq!(canonical("1.5e-2147483648").as_deref(), Ok("150e2147483646"));
        assert_eq!(canonical("1e2000000000").as_deref(), Ok("100e1999999998"));
        let digits = "9".repeat(30);
        assert!(canonical(&format!("{digits}e2147483647")).is_ok());
        assert!(canonical(&format!("1e{digits}")).is_err());
        assert!(canonical(&digits.repeat(100)).is_err());
    }
}
