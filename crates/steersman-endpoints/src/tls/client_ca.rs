// SPDX-License-Identifier: Apache-2.0
//! Verifies client certificates against a CA file that is reloaded when it changes.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use steersman_core::{Mutex, RwLock, error_chain};

use super::{TlsError, provider, read, subject};

/// A CA file, and the verifier of its last valid content.
pub(crate) struct ClientCa {
    path: PathBuf,
    is_required: bool,
    current: RwLock<Arc<dyn ClientCertVerifier>>,
    last_read: Mutex<LastRead>,
}

struct LastRead {
    /// The last valid content. It is public, unlike a key.
    content: Vec<u8>,
    /// The error of the last read, which was logged.
    error: Option<String>,
}

/// The certificate that a client presented on its connection. Each request verifies it again, so that an expired certificate
/// or a changed CA ends its permissions, also on a connection that stays open.
#[derive(Clone)]
pub(crate) struct ClientCertificate {
    pub(super) chain: Arc<[CertificateDer<'static>]>,
    pub(super) ca: Arc<ClientCa>,
}

/// The user of a certificate: the common name and the organizations of its subject, as API servers read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateUser {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

impl ClientCa {
    /// Loads the file.
    pub(super) fn load(path: PathBuf, is_required: bool) -> Result<Self, TlsError> {
        let content = read(&path, std::fs::read(&path))?;
        Ok(Self {
            current: RwLock::new(verifier(&path, &content)?),
            last_read: Mutex::new(LastRead { content, error: None }),
            path,
            is_required,
        })
    }

    /// Returns the same CA, with certificates that clients must present.
    pub(super) fn required(&self) -> Self {
        Self {
            path: self.path.clone(),
            is_required: true,
            current: RwLock::new(self.verifier()),
            last_read: Mutex::new(LastRead {
                content: self.last_read.lock().content.clone(),
                error: None,
            }),
        }
    }

    /// Loads the file again if it has changed, and logs the result.
    pub(super) async fn reload(&self) {
        let loaded = read(&self.path, tokio::fs::read(&self.path).await).and_then(|content| {
            if self.last_read.lock().content == content {
                return Ok(None);
            }
            Ok(Some((verifier(&self.path, &content)?, content)))
        });
        let mut last_read = self.last_read.lock();
        let ca = self.path.display();
        match loaded {
            Ok(changed) => {
                if let Some((verifier, content)) = changed {
                    *self.current.write() = verifier;
                    last_read.content = content;
                    tracing::info!(%ca, "reloaded client CA");
                }
                last_read.error = None;
            }
            Err(error) => {
                let error = error_chain(&error);
                if last_read.error.as_ref() != Some(&error) {
                    tracing::warn!(%ca, error, "failed to reload client CA; keeping the last valid one");
                    last_read.error = Some(error);
                }
            }
        }
    }

    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let current = self.current.read();
        Arc::clone(&current)
    }
}

impl ClientCertificate {
    /// Verifies the certificate now, and returns its user. A certificate without a common name has none.
    pub(crate) fn user(&self) -> Option<CertificateUser> {
        self.verified().and_then(|certificate| subject::user(certificate))
    }

    /// Returns whether requests of this client are accepted now: a required certificate has to stay valid.
    pub(crate) fn is_accepted(&self) -> bool {
        !self.ca.is_required || self.verified().is_some()
    }

    /// Verifies the certificate now, and returns it without its intermediates.
    fn verified(&self) -> Option<&CertificateDer<'static>> {
        let (own, intermediates) = self.chain.split_first()?;
        let verified = self
            .ca
            .verifier()
            .verify_client_cert(own, intermediates, UnixTime::now());
        match verified {
            Ok(_) => Some(own),
            Err(error) => {
                tracing::debug!(%error, "client certificate is no longer valid");
                None
            }
        }
    }
}

/// Builds a verifier of all certificates in a PEM bundle.
fn verifier(path: &Path, content: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let invalid = |source| TlsError::Pem {
        path: path.to_owned(),
        expected: "CERTIFICATE",
        source,
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(content) {
        roots
            .add(certificate.map_err(invalid)?)
            .map_err(|source| TlsError::ClientCa {
                path: path.to_owned(),
                source: source.into(),
            })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let built = builder.build().map_err(|source| TlsError::ClientCa {
        path: path.to_owned(),
        source: source.into(),
    })?;
    Ok(built)
}

impl ClientCertVerifier for ClientCa {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    /// Without hints, a client presents the certificate that it is configured with.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verifier().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

/// Shows the file name only.
impl fmt::Debug for ClientCa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCa")
            .field("path", &self.path)
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}
