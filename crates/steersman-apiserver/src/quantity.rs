// SPDX-License-Identifier: Apache-2.0
//! Resource quantities in the one form that the real server stores them in.
//!
//! Written by hand: the known crates parse quantities for arithmetic and do not keep Go's choice of suffix.

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

/// The canonical form of a quantity, or nothing if it is not one.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let split = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty()
        || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let exponent = -i32::try_from(fraction.len()).ok()?;
    let sign = if negative && mantissa != 0 { "-" } else { "" };
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some(format!("{sign}{}", binary(mantissa, exponent, *shift)?));
    }
    if let Some(power) = suffix.strip_prefix(['e', 'E']).filter(|power| !power.is_empty()) {
        let power: i32 = power.parse().ok()?;
        return Some(format!("{sign}{}", scientific(mantissa, exponent + power)?));
    }
    let (_, power) = DECIMAL.iter().find(|(name, _)| *name == suffix)?;
    Some(format!("{sign}{}", decimal(mantissa, exponent + power)?))
}

/// About how much a canonical quantity is, to compare it with others.
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

/// The mantissa in the largest step of three powers that keeps it whole, rounded up below 1n.
fn thousands(mut mantissa: i128, mut exponent: i32) -> Option<(i128, i32)> {
    if mantissa == 0 {
        return Some((0, 0));
    }
    while exponent < -9 {
        mantissa = mantissa / 10 + i128::from(mantissa % 10 != 0);
        exponent += 1;
    }
    while exponent % 3 != 0 {
        mantissa = mantissa.checked_mul(10)?;
        exponent -= 1;
    }
    while mantissa % 1000 == 0 && exponent < 18 {
        mantissa /= 1000;
        exponent += 3;
    }
    while exponent > 18 {
        mantissa = mantissa.checked_mul(1000)?;
        exponent -= 3;
    }
    Some((mantissa, exponent))
}

fn decimal(mantissa: i128, exponent: i32) -> Option<String> {
    let (mantissa, exponent) = thousands(mantissa, exponent)?;
    let (suffix, _) = DECIMAL.iter().find(|(_, power)| *power == exponent)?;
    Some(format!("{mantissa}{suffix}"))
}

fn scientific(mantissa: i128, exponent: i32) -> Option<String> {
    let (mantissa, exponent) = thousands(mantissa, exponent)?;
    Some(if exponent == 0 {
        mantissa.to_string()
    } else {
        format!("{mantissa}e{exponent}")
    })
}

fn binary(mantissa: i128, exponent: i32, shift: u32) -> Option<String> {
    let scaled = mantissa.checked_mul(1_i128.checked_shl(shift)?)?;
    let divisor = 10_i128.checked_pow(exponent.unsigned_abs())?;
    if scaled % divisor != 0 {
        return decimal(scaled, exponent);
    }
    let value = scaled / divisor;
    if value < 1024 {
        // Small or zero: Go writes it without a suffix.
        return Some(value.to_string());
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
    use super::{canonical, number};

    #[test]
    fn quantities_are_compared_over_suffixes() {
        assert!(number("1500m") > number("1"));
        assert!(number("1Ki") > number("1k"));
        assert!(number("-1").unwrap() < 0.0);
        assert_eq!(number("lots"), None);
    }

    #[test]
    fn quantities_take_the_form_that_go_prints() {
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
        ] {
            assert_eq!(canonical(given).as_deref(), Some(expected), "{given}");
        }
        for bad in ["", "x", "1.2.3", "1Zi", "--1", "1e"] {
            assert_eq!(canonical(bad), None, "{bad}");
        }
    }
}
