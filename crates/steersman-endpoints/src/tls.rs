// SPDX-License-Identifier: Apache-2.0
//! TLS certificates of a server.
//!
//! # Guarantees
//! 1. Changed certificate files are loaded within 10 s. New connections use the new certificate; open connections stay.
//! 2. If the files are incomplete or do not match, the last valid pair stays in use, and the log names the problem once.
//! 3. A [client CA](Tls::client_ca) is reloaded in the same way. A client certificate is verified in the handshake and again
//!    with each request, so that it counts only while it is valid and its CA is in the file.

mod client_ca;
mod subject;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use ring::digest::{Context, SHA256};
use rustls::{
    ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::{CertifiedKey, SingleCertAndKey},
};
use steersman_core::{Clock, Mutex, RwLock, error_chain};
use tokio_rustls::TlsAcceptor;

use client_ca::ClientCa;
pub(crate) use client_ca::{CertificateUser, ClientCertificate};

/// Interval between two reads of the files. Kubernetes takes up to a minute to update a mounted Secret, so watching the
/// file system would gain little.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The ALPN name of HTTP/2.
pub(crate) const HTTP_2: &[u8] = b"h2";

/// TLS configuration of a server, with HTTP/2 and HTTP/1.1. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// `None` for a rustls configuration of the user, which stays as it is.
    resolver: Option<Arc<dyn ResolvesServerCert>>,
    files: Option<Arc<Files>>,
    client_ca: Option<Arc<ClientCa>>,
}

/// TLS could not be configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file does not contain the expected PEM block.
    #[error("{} has no PEM block `{expected}`", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Label of the expected block.
        expected: &'static str,
        /// The error of the parser.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The key does not match the certificate, or one of them is not supported.
    #[error("cannot use the certificate in {} with the key in {}", certificate.display(), key.display())]
    Pair {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The error of rustls.
        #[source]
        source: rustls::Error,
    },
    /// A certificate in a CA file cannot be used, or the file has none.
    #[error("cannot use the client CA in {}", path.display())]
    ClientCa {
        /// The CA file.
        path: PathBuf,
        /// The error of rustls.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A [rustls configuration](Tls::config) has its own verifier of client certificates.
    #[error("cannot set the client CA of a rustls configuration; set its verifier")]
    OwnConfig,
    /// Client certificates are required, and no CA is set that verifies them.
    #[error("cannot require client certificates without a CA; call `client_ca` first")]
    NoClientCa,
    /// The self-signed certificate could not be generated.
    #[error("cannot generate a self-signed certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// rustls rejected the configuration.
    #[error("cannot configure TLS")]
    Setup(#[source] rustls::Error),
}

/// Certificate files and the last valid pair that they contained.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    last_read: Mutex<LastRead>,
    reads: Counter,
    failures: Counter,
}

struct LastRead {
    /// Digest of the last valid pair; a digest avoids a second copy of the key.
    digest: Vec<u8>,
    /// The error of the last read, which was logged.
    error: Option<String>,
}

impl Tls {
    /// Generates a self-signed certificate for `localhost`, which is kept in memory only.
    ///
    /// It encrypts the connection. Clients cannot verify the server: configure them to skip verification.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn self_signed() -> Result<Self, TlsError> {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let generated = rcgen::generate_simple_self_signed(names).map_err(TlsError::SelfSigned)?;
        let key = PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der());
        let chain = vec![generated.cert.der().clone()];
        let certified = CertifiedKey::from_der(chain, key.into(), &provider()).map_err(TlsError::Setup)?;
        Self::of(Arc::new(SingleCertAndKey::from(certified)), None, None)
    }

    /// Loads a certificate chain and a private key from PEM files such as `tls.crt` and `tls.key`, and reloads them when
    /// they change. A running server reads the files every 10 s.
    ///
    /// # Errors
    /// If the files cannot be read, or do not contain a certificate and its key.
    pub fn files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let pair = Pair {
            certificate: read(&certificate, std::fs::read(&certificate))?,
            key: read(&key, std::fs::read(&key))?,
        };
        let files = Arc::new(Files {
            current: RwLock::new(Arc::new(pair.certified(&certificate, &key)?)),
            last_read: Mutex::new(LastRead {
                digest: pair.digest(),
                error: None,
            }),
            certificate,
            key,
            reads: Counter::default(),
            failures: Counter::default(),
        });
        files.reads.inc();
        Self::of(Arc::clone(&files) as _, Some(files), None)
    }

    /// Uses a rustls configuration. Its ALPN protocols should be `h2` and `http/1.1`, or one of them. Client certificates
    /// that it verifies admit a client to the server, and do not authenticate a user.
    #[must_use]
    pub fn config(config: Arc<ServerConfig>) -> Self {
        Self {
            config,
            resolver: None,
            files: None,
            client_ca: None,
        }
    }

    /// Accepts client certificates of the CAs in this PEM file, and reloads it when it changes. A running server reads it
    /// every 10 s. Default: no client certificates.
    ///
    /// A certificate authenticates its user as API servers do: the common name of the subject is the name, and the
    /// organizations are the groups. Clients without a certificate connect too, and can send a token. A certificate of
    /// another CA, or an expired one, fails the handshake.
    ///
    /// # Errors
    /// If the file cannot be read, or contains no CA certificate. For a [rustls configuration](Self::config), always.
    pub fn client_ca(self, file: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let is_required = false;
        self.with_client_ca(ClientCa::load(file.into(), is_required)?)
    }

    /// Requires a client certificate of the [client CA](Self::client_ca): the handshake fails without one, and requests
    /// get status 401 once it is no longer valid. Use it for probes and other routes that no token protects. Default:
    /// certificates are optional.
    ///
    /// # Errors
    /// If no client CA is set.
    pub fn require_client_certificate(self) -> Result<Self, TlsError> {
        let ca = self.client_ca.as_ref().ok_or(TlsError::NoClientCa)?.required();
        self.with_client_ca(ca)
    }

    fn with_client_ca(self, ca: ClientCa) -> Result<Self, TlsError> {
        let resolver = self.resolver.ok_or(TlsError::OwnConfig)?;
        Self::of(resolver, self.files, Some(Arc::new(ca)))
    }

    fn of(
        resolver: Arc<dyn ResolvesServerCert>,
        files: Option<Arc<Files>>,
        client_ca: Option<Arc<ClientCa>>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match &client_ca {
            Some(ca) => builder.with_client_cert_verifier(Arc::clone(ca) as _),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&resolver));
        config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
        if client_ca.is_some() {
            // rustls does not verify the client certificate of a session that is resumed.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Self {
            config: Arc::new(config),
            resolver: Some(resolver),
            files,
            client_ca,
        })
    }

    /// Registers the metrics of certificate reads, with the names of controller-runtime.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        if let Some(files) = &self.files {
            let help = "Total number of certificate reads";
            registry.register("certwatcher_read_certificate_total", help, files.reads.clone());
            let help = "Total number of certificate read errors";
            registry.register(
                "certwatcher_read_certificate_errors_total",
                help,
                files.failures.clone(),
            );
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Returns the certificate that the client of a connection presented, if this configuration has a client CA.
    pub(crate) fn client_certificate(
        &self,
        presented: Option<&[CertificateDer<'static>]>,
    ) -> Option<ClientCertificate> {
        Some(ClientCertificate {
            chain: presented?.into(),
            ca: Arc::clone(self.client_ca.as_ref()?),
        })
    }

    /// Reloads the files when they change. Never completes.
    pub(crate) async fn reload(&self, clock: &dyn Clock) {
        if self.files.is_none() && self.client_ca.is_none() {
            return std::future::pending().await;
        }
        loop {
            clock.sleep_until(clock.now() + RELOAD_INTERVAL).await;
            if let Some(files) = &self.files {
                let result = files.reload().await;
                files.log(result);
            }
            if let Some(ca) = &self.client_ca {
                ca.reload().await;
            }
        }
    }
}

impl Files {
    /// Returns whether the files have changed.
    async fn reload(&self) -> Result<bool, TlsError> {
        self.reads.inc();
        let pair = Pair {
            certificate: read(&self.certificate, tokio::fs::read(&self.certificate).await)?,
            key: read(&self.key, tokio::fs::read(&self.key).await)?,
        };
        let digest = pair.digest();
        let mut last_read = self.last_read.lock();
        if last_read.digest == digest {
            return Ok(false);
        }
        let certified = Arc::new(pair.certified(&self.certificate, &self.key)?);
        *self.current.write() = certified;
        last_read.digest = digest;
        Ok(true)
    }

    fn log(&self, result: Result<bool, TlsError>) {
        let mut last_read = self.last_read.lock();
        let certificate = self.certificate.display();
        match result {
            Ok(changed) => {
                if changed {
                    tracing::info!(%certificate, "reloaded certificate");
                }
                last_read.error = None;
            }
            Err(error) => {
                self.failures.inc();
                let error = error_chain(&error);
                if last_read.error.as_ref() != Some(&error) {
                    tracing::warn!(%certificate, error, "failed to reload certificate; keeping the last valid one");
                    last_read.error = Some(error);
                }
            }
        }
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read();
        Some(Arc::clone(&current))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("files", &self.files)
            .field("client_ca", &self.client_ca)
            .finish_non_exhaustive()
    }
}

/// Shows the file names only.
impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries([&self.certificate, &self.key]).finish()
    }
}

/// The contents of both files.
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Pair {
    fn digest(&self) -> Vec<u8> {
        let mut context = Context::new(&SHA256);
        context.update(&self.certificate.len().to_le_bytes());
        context.update(&self.certificate);
        context.update(&self.key);
        context.finish().as_ref().to_vec()
    }

    fn certified(&self, certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
        let invalid = |path: &Path, expected| {
            let path = path.to_owned();
            move |source| TlsError::Pem {
                path,
                expected,
                source,
            }
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(invalid(certificate, "CERTIFICATE"))?;
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(invalid(key, "PRIVATE KEY"))?;
        CertifiedKey::from_der(chain, private, &provider()).map_err(|source| TlsError::Pair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            source,
        })
    }
}

fn read(path: &Path, content: io::Result<Vec<u8>>) -> Result<Vec<u8>, TlsError> {
    content.map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// An explicit provider, so that rustls does not fail in a process whose crates enable several.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
