// SPDX-License-Identifier: Apache-2.0
//! Reads the subject of an X.509 certificate that was verified before.

use super::client_ca::CertificateUser;

/// Tags of DER.
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;

/// Object identifiers of attributes.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// Returns the common name and the organizations, or `None` without a common name. With several common names, the last one
/// counts, as in Go.
pub(super) fn user(certificate: &[u8]) -> Option<CertificateUser> {
    let (mut name, mut groups) = (None, Vec::new());
    let mut names = subject(certificate)?;
    while !names.is_empty() {
        let (mut attributes, rest) = expect(names, SET)?;
        names = rest;
        while !attributes.is_empty() {
            let (attribute, rest) = expect(attributes, SEQUENCE)?;
            attributes = rest;
            let (identifier, value) = expect(attribute, OBJECT_IDENTIFIER)?;
            match identifier {
                COMMON_NAME => name = Some(text(value)?),
                ORGANIZATION => groups.push(text(value)?),
                _ => {}
            }
        }
    }
    let name = name.filter(|name| !name.is_empty())?;
    Some(CertificateUser { name, groups })
}

/// Returns the content of the subject.
fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, behind)) = expect(rest, VERSION) {
        rest = behind;
    }
    // Serial number, signature algorithm, issuer, validity.
    for tag in [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE] {
        (_, rest) = expect(rest, tag)?;
    }
    let (subject, _) = expect(rest, SEQUENCE)?;
    Some(subject)
}

fn text(value: &[u8]) -> Option<String> {
    let (tag, content, _) = element(value)?;
    let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
    let text = String::from_utf8(content.to_vec()).ok()?;
    is_text.then_some(text)
}

/// Splits off the first element, which must have this tag: its content and the rest.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Splits off the first element: its tag, its content and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    // C6
    #[test]
    fn reads_the_common_name_and_the_organization() {
        let long = "o".repeat(300);
        let der = certificate(&[
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, &long),
            (DnType::CommonName, "system:scraper ü"),
        ]);
        let expected = CertificateUser {
            name: "system:scraper ü".to_owned(),
            groups: vec![long],
        };
        assert_eq!(user(&der), Some(expected));
    }

    // C6
    #[test]
    fn a_certificate_without_a_common_name_has_no_user() {
        assert_eq!(user(&certificate(&[(DnType::OrganizationName, "masters")])), None);
        assert_eq!(user(&certificate(&[(DnType::CommonName, "")])), None);
    }

    // C6
    #[test]
    fn truncated_bytes_are_no_user_and_do_not_panic() {
        let der = certificate(&[(DnType::CommonName, "scraper")]);
        for end in 0..120.min(der.len()) {
            assert_eq!(user(&der[..end]), None);
        }
        for at in 0..der.len() {
            let mut broken = der.clone();
            broken[at] ^= 0x80;
            let _ = user(&broken);
        }
    }
}
