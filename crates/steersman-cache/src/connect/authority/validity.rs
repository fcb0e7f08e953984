// SPDX-License-Identifier: Apache-2.0
//! Reads the end of the validity of an X.509 certificate.

/// Tags of DER.
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Returns `notAfter` in seconds since 1970, or `None` if the bytes are not a certificate.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    // Version (optional), serial number, signature algorithm, issuer.
    for expected in [VERSION, INTEGER, SEQUENCE, SEQUENCE] {
        let (tag, _, behind) = element(rest)?;
        match tag == expected {
            true => rest = behind,
            false if expected == VERSION => {}
            false => return None,
        }
    }
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, behind) = element(validity)?;
    let (tag, time, _) = element(behind)?;
    seconds(tag, time)
}

/// Splits the first element off: its tag, its content and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (
                length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
                rest,
            )
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn seconds(tag: u8, time: &[u8]) -> Option<i64> {
    let digits = time.strip_suffix(b"Z")?;
    let number = |range: std::ops::Range<usize>| {
        let text = std::str::from_utf8(digits.get(range)?).ok()?;
        text.parse::<u32>().ok().map(i64::from)
    };
    let (year, at) = match tag {
        UTC_TIME => {
            let year = number(0..2)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, 2)
        }
        GENERALIZED_TIME => (number(0..4)?, 4),
        _ => return None,
    };
    let part = |index: usize| number(at + 2 * index..at + 2 * index + 2);
    let days = days(year, part(0)?, part(1)?);
    Some(((days * 24 + part(2)?) * 60 + part(3)?) * 60 + part(4)?)
}

/// Days since 1970 in the Gregorian calendar. Years begin in March, so that a leap day is the last day of one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms_of_times() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "20000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "21260208130950Z", Some(4_926_229_790)),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "70010100000xZ", None),
            (UTC_TIME, "700101000000", None),
            (INTEGER, "700101000000Z", None),
        ] {
            assert_eq!(seconds(tag, text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn reads_a_certificate_and_no_other_bytes() {
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2031, 5, 6);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let der = certificate.der();
        assert_eq!(not_after(der), Some(1_935_792_000));
        for length in 0..der.len() {
            assert_eq!(not_after(&der[..length]), None, "{length}");
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
