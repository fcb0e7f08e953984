// SPDX-License-Identifier: Apache-2.0
//! Arithmetic on quantities.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use super::{BINARY, Format, Precision, canonical, leading, power};

const NANO: i128 = 1_000_000_000;

/// A quantity as a number, with its suffix family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    nano: i128,
    is_binary: bool,
}

impl Amount {
    /// The count one.
    pub(crate) const ONE: Self = Self {
        nano: NANO,
        is_binary: false,
    };

    /// Creates a count.
    pub(crate) fn count(number: usize) -> Self {
        Self {
            nano: i128::try_from(number).unwrap_or(i128::MAX / NANO) * NANO,
            is_binary: false,
        }
    }

    /// Parses a canonical quantity.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (sign, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text),
        };
        let (number, suffix) = leading(unsigned, |c| c.is_ascii_digit() || c == '.');
        let (format, power) = power(suffix)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
        let places = u32::try_from(fraction.len()).ok()?;
        let scaled = match format {
            Format::Binary => mantissa.checked_shl(power.unsigned_abs())?.checked_mul(NANO)?,
            _ => mantissa.checked_mul(10_i128.checked_pow(u32::try_from(power + 9).ok()?)?)?,
        };
        Some(Self {
            nano: sign * (scaled / 10_i128.checked_pow(places)?),
            is_binary: format == Format::Binary,
        })
    }

    pub(crate) fn is_zero(self) -> bool {
        self.nano == 0
    }

    pub(crate) fn is_negative(self) -> bool {
        self.nano < 0
    }

    pub(crate) fn is_whole(self) -> bool {
        self.nano % NANO == 0
    }

    /// Returns the sum, in the suffix family of the first operand that is not zero.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            nano: self.nano.saturating_add(other.nano),
            is_binary: if self.is_zero() {
                other.is_binary
            } else {
                self.is_binary
            },
        }
    }

    /// Returns the difference, at least zero.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            nano: self.nano.saturating_sub(other.nano).max(0),
            is_binary: self.is_binary,
        }
    }

    /// Returns the ratio of this amount to the other.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the real server compares such ratios as floating point numbers"
    )]
    pub(crate) fn ratio(self, other: Self) -> f64 {
        self.nano as f64 / other.nano as f64
    }

    /// Returns the amount as a floating-point number.
    pub(crate) fn number(self) -> f64 {
        self.ratio(Self::ONE)
    }
}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.nano.partial_cmp(&other.nano)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_binary && self.is_whole() {
            let value = self.nano / NANO;
            let exact = |shift: u32| value != 0 && value % (1_i128 << shift) == 0;
            return match BINARY.iter().rev().find(|(_, shift)| exact(*shift)) {
                Some((suffix, shift)) => write!(f, "{}{suffix}", value >> shift),
                None => write!(f, "{value}"),
            };
        }
        let text = format!("{}n", self.nano);
        f.write_str(&canonical(&text, Precision::Nano).unwrap_or(text))
    }
}

/// Amounts by resource name.
pub(crate) type Amounts = BTreeMap<String, Amount>;

/// Parses a resource list.
pub(crate) fn amounts(list: &Value) -> Amounts {
    let entries = list.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, text)| Some((name.clone(), Amount::parse(text.as_str()?)?)))
        .collect()
}

/// Adds each amount to the one of the same name.
pub(crate) fn add(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let sum = to.get(name).copied().unwrap_or_default().plus(*amount);
        to.insert(name.clone(), sum);
    }
}

/// Raises each amount to at least the one of the same name.
pub(crate) fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if to.get(name).is_none_or(|known| known < amount) {
            to.insert(name.clone(), *amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, two: &str) -> String {
        let parse = |text| Amount::parse(text).unwrap();
        parse(one).plus(parse(two)).to_string()
    }

    #[test]
    fn sums_keep_the_suffixes_of_the_first_amount() {
        assert_eq!(sum("500m", "600m"), "1100m");
        assert_eq!(sum("512Mi", "512Mi"), "1Gi");
        assert_eq!(sum("0", "512Mi"), "512Mi");
        assert_eq!(sum("1Gi", "1"), "1073741825");
        assert_eq!(sum("1k", "1Ki"), "2024");
        assert_eq!(sum("1", "0.5"), "1500m");
        assert_eq!(sum("0", "0"), "0");
    }

    #[test]
    fn amounts_are_compared_by_value() {
        let parse = |text| Amount::parse(text).unwrap();
        assert!(parse("1Gi") > parse("1G"));
        assert!(parse("1000m") <= parse("1"));
        assert!(parse("-1").is_negative());
        assert_eq!(Amount::parse("1x"), None);
    }
}
