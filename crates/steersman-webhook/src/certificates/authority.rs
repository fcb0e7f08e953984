// SPDX-License-Identifier: Apache-2.0
//! CA certificates and their keys.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use super::CLOCK_SKEW;

/// A CA certificate, without its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CaCert {
    der: CertificateDer<'static>,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// A CA certificate with its key.
pub(crate) struct Authority {
    cert: CaCert,
    key: KeyPair,
}

/// A serving certificate.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) key: std::sync::Arc<CertifiedKey>,
    pub(crate) issuer: CaCert,
    pub(crate) not_after: SystemTime,
    pub(crate) renew_at: SystemTime,
}

/// A certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CertificateError {
    #[error("`{0}` has no PEM block of a certificate")]
    NoCertificate(&'static str),
    #[error("`{0}` has no valid CA certificate")]
    NotACa(&'static str),
    #[error("`{0}` has no private key of its certificate")]
    NoKey(&'static str),
    #[error("cannot generate a certificate")]
    Generate(#[from] rcgen::Error),
    #[error("cannot use the generated certificate")]
    Use(#[from] rustls::Error),
}

impl CaCert {
    fn parse(der: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
        if !parsed.is_ca() {
            return None;
        }
        let time = |time: x509_parser::time::ASN1Time| {
            let seconds = u64::try_from(time.timestamp()).ok()?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        };
        let validity = parsed.validity();
        let (not_before, not_after) = (time(validity.not_before)?, time(validity.not_after)?);
        Some(Self {
            der,
            not_before,
            not_after,
        })
    }

    #[cfg(test)]
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    pub(crate) fn is_expired(&self, now: SystemTime) -> bool {
        now >= self.not_after
    }

    /// Two thirds of its lifetime.
    pub(crate) fn renew_at(&self) -> SystemTime {
        let lifetime = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + lifetime * 2 / 3
    }

    fn pem(&self) -> String {
        let text = STANDARD.encode(&self.der);
        let lines: Vec<&str> = (0..text.len())
            .step_by(64)
            .map(|at| &text[at..text.len().min(at + 64)])
            .collect();
        format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            lines.join("\n")
        )
    }
}

impl fmt::Debug for CaCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaCert")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Reads the CA certificates of a bundle. Skips invalid ones.
pub(crate) fn parse_bundle(pem: &[u8]) -> Vec<CaCert> {
    let blocks = CertificateDer::pem_slice_iter(pem).map_while(Result::ok);
    blocks.filter_map(CaCert::parse).collect()
}

pub(crate) fn bundle_pem(certs: &[CaCert]) -> String {
    certs.iter().map(CaCert::pem).collect()
}

impl Authority {
    /// Generates a CA that is valid from now on.
    pub(crate) fn generate(
        name: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let seconds = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{name} webhook CA {seconds}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + lifetime).into();
        let cert = params.self_signed(&key)?;
        let cert = CaCert::parse(cert.der().clone()).ok_or(CertificateError::NotACa("generated"))?;
        Ok(Self { cert, key })
    }

    /// Reads a CA and its key from PEM. `what` names them in errors.
    pub(crate) fn parse(what: &'static str, cert: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let der = CertificateDer::from_pem_slice(cert).map_err(|_| CertificateError::NoCertificate(what))?;
        let cert = CaCert::parse(der).ok_or(CertificateError::NotACa(what))?;
        let no_key = || CertificateError::NoKey(what);
        let key = std::str::from_utf8(key).map_err(|_| no_key())?;
        let key = KeyPair::from_pem(key).map_err(|_| no_key())?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&cert.der).map_err(|_| CertificateError::NotACa(what))?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(no_key());
        }
        Ok(Self { cert, key })
    }

    pub(crate) fn cert(&self) -> &CaCert {
        &self.cert
    }

    pub(crate) fn cert_pem(&self) -> String {
        self.cert.pem()
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Signs a leaf for these names.
    pub(crate) fn sign(
        &self,
        names: &[String],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Leaf, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        let common_name = names.first().map_or("webhook", |name| name.as_str());
        // The limit of a common name is 64 characters; clients verify the alternative names.
        let common_name: String = common_name.chars().take(64).collect();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let not_after = (now + lifetime).min(self.cert.not_after);
        params.not_before = (now - CLOCK_SKEW).max(self.cert.not_before).into();
        params.not_after = not_after.into();
        let issuer = Issuer::from_ca_cert_der(&self.cert.der, &self.key)?;
        let cert = params.signed_by(&key, &issuer)?;
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![cert.der().clone()];
        let key = CertifiedKey::from_der(chain, private, &ring::default_provider())?;
        let left = not_after.duration_since(now).unwrap_or_default();
        Ok(Leaf {
            key: std::sync::Arc::new(key),
            issuer: self.cert.clone(),
            not_after,
            renew_at: now + left * 2 / 3,
        })
    }
}

impl Clone for Authority {
    fn clone(&self) -> Self {
        let key = KeyPair::from_pem(&self.key.serialize_pem()).expect("a key that was serialised is valid");
        Self {
            cert: self.cert.clone(),
            key,
        }
    }
}

/// Does not show the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("cert", &self.cert)
            .finish_non_exhaustive()
    }
}
