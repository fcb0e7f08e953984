// SPDX-License-Identifier: Apache-2.0
//! The state of the CA, as it is stored in a Secret.
//!
//! | key | content |
//! |---|---|
//! | `tls.crt`, `tls.key` | the CA that signs leaves |
//! | `next.crt`, `next.key` | the CA that will sign leaves once its certificate is published |
//! | `ca.crt` | the published bundle |

use std::{collections::BTreeMap, time::SystemTime};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::authority::{Authority, CaCert, CertificateError, bundle_pem, parse_bundle};

/// Since when every registration object has the certificate of the next CA.
const PUBLISHED_AT: &str = "webhook.steersman.dev/published-at";
/// When the signing CA began to sign.
pub(crate) const SWITCHED_AT: &str = "webhook.steersman.dev/switched-at";
/// Any value requests a rotation.
pub(crate) const ROTATE: &str = "webhook.steersman.dev/rotate";

const KEYS: [&str; 5] = ["tls.crt", "tls.key", "next.crt", "next.key", "ca.crt"];

/// The state of the CA.
#[derive(Clone, Debug)]
pub(crate) struct CaState {
    /// None only after the Secret was lost: published CAs are trusted, and none of their keys is left.
    pub(crate) signer: Option<Authority>,
    pub(crate) next: Option<Authority>,
    /// The published bundle.
    pub(crate) trusted: Vec<CaCert>,
    pub(crate) published_at: Option<SystemTime>,
    pub(crate) switched_at: Option<SystemTime>,
    pub(crate) is_rotation_requested: bool,
}

impl CaState {
    /// Reads a Secret.
    pub(crate) fn parse(secret: &Secret) -> Result<Self, CertificateError> {
        let data = |key: &str| {
            secret
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .map(|value| &*value.0)
        };
        let authority = |what, crt: &str, key: &str| match (data(crt), data(key)) {
            (None, None) => Ok(None),
            (cert, key) => {
                Authority::parse(what, cert.unwrap_or_default(), key.unwrap_or_default()).map(Some)
            }
        };
        let (signer, next) = (
            authority("tls.crt", "tls.crt", "tls.key")?,
            authority("next.crt", "next.crt", "next.key")?,
        );
        let mut trusted = parse_bundle(data("ca.crt").unwrap_or_default());
        if signer.is_none() && next.is_none() {
            return Err(CertificateError::NoCertificate("tls.crt"));
        }
        for authority in signer.iter().chain(&next) {
            trust(&mut trusted, authority.cert());
        }
        let annotation = |key: &str| secret.metadata.annotations.as_ref()?.get(key);
        let time = |key: &str| Some(SystemTime::from(annotation(key)?.parse::<Timestamp>().ok()?));
        Ok(Self {
            signer,
            next,
            trusted,
            published_at: time(PUBLISHED_AT),
            switched_at: time(SWITCHED_AT),
            is_rotation_requested: annotation(ROTATE).is_some(),
        })
    }

    /// Writes the state into a Secret. Other keys and annotations stay.
    pub(crate) fn write(&self, secret: &mut Secret) {
        let data = secret.data.get_or_insert_default();
        KEYS.iter().for_each(|key| {
            data.remove(*key);
        });
        let mut insert = |key: &str, value: String| {
            data.insert(key.to_owned(), ByteString(value.into_bytes()));
        };
        for (authority, crt, key) in [
            (&self.signer, "tls.crt", "tls.key"),
            (&self.next, "next.crt", "next.key"),
        ] {
            if let Some(authority) = authority {
                insert(crt, authority.cert_pem());
                insert(key, authority.key_pem());
            }
        }
        insert("ca.crt", bundle_pem(&self.trusted));
        let annotations = secret.metadata.annotations.get_or_insert_default();
        set_time(annotations, PUBLISHED_AT, self.published_at);
        set_time(annotations, SWITCHED_AT, self.switched_at);
        if !self.is_rotation_requested {
            annotations.remove(ROTATE);
        }
    }
}

fn set_time(annotations: &mut BTreeMap<String, String>, key: &str, time: Option<SystemTime>) {
    match time.and_then(|time| Timestamp::try_from(time).ok()) {
        Some(time) => annotations.insert(key.to_owned(), time.to_string()),
        None => annotations.remove(key),
    };
}

/// Adds a certificate to a bundle that does not have it.
pub(crate) fn trust(bundle: &mut Vec<CaCert>, cert: &CaCert) {
    if !bundle.contains(cert) {
        bundle.push(cert.clone());
    }
}
