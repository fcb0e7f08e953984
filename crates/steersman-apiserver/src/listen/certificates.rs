// SPDX-License-Identifier: Apache-2.0
//! The certificate authority of one listener, its server certificate and its client certificates.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};

use super::ListenError;
use crate::Identity;

/// Issues certificates and records the identity of each.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pem: String,
    address: IpAddr,
    /// Issued client certificates by their bytes: identities are looked up instead of parsed.
    issued: Mutex<HashMap<Vec<u8>, Identity>>,
}

impl Authority {
    pub(super) fn new(address: IpAddr) -> Result<Self, ListenError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = name("steersman-apiserver", &[]);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::CrlSign,
        ];
        let key = KeyPair::generate().map_err(ListenError::Certificate)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(ListenError::Certificate)?;
        let pem = issuer.as_ref().pem();
        Ok(Self {
            issuer,
            pem,
            address,
            issued: Mutex::default(),
        })
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the TLS settings with a certificate for the listener's address; client certificates are optional.
    pub(super) fn server_config(&self) -> Result<ServerConfig, ListenError> {
        let names = vec![
            "localhost".to_owned(),
            "kubernetes.default.svc".to_owned(),
            self.address.to_string(),
            "127.0.0.1".to_owned(),
        ];
        let mut params = CertificateParams::new(names).map_err(ListenError::Certificate)?;
        params.distinguished_name = name("kube-apiserver", &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(ListenError::Certificate)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(ListenError::Certificate)?;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(self.issuer.as_ref().der().clone())
            .map_err(ListenError::Tls)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| ListenError::Tls(rustls::Error::General(error.to_string())))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(ListenError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(ListenError::Tls)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Issues a certificate and key for an identity, as PEM.
    pub(super) fn issue(&self, identity: Identity) -> Result<(String, String), ListenError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(identity.name(), identity.groups());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(ListenError::Certificate)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(ListenError::Certificate)?;
        self.issued
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(certificate.der().to_vec(), identity);
        Ok((certificate.pem(), key.serialize_pem()))
    }

    pub(super) fn identify(&self, certificate: &CertificateDer<'_>) -> Option<Identity> {
        self.issued
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(certificate.as_ref())
            .cloned()
    }
}

fn name(common: &str, organizations: &[String]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    // The real server reads groups from here, and adds `system:authenticated` itself.
    for organization in organizations
        .iter()
        .filter(|group| *group != "system:authenticated")
    {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    name
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
