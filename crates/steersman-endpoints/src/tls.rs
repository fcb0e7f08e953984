// SPDX-License-Identifier: Apache-2.0
//! TLS certificates of a server.
//!
//! # Guarantees
//! 1. Changed certificate files are loaded within 10 s. New connections use the new certificate; open connections stay.
//! 2. If the files are incomplete or do not match, the last valid pair stays in use, and the log names the problem once.

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
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use steersman_core::{Clock, Mutex, RwLock, error_chain};
use tokio_rustls::TlsAcceptor;

/// Interval between two reads of the files. Kubernetes takes up to a minute to update a mounted Secret, so watching the
/// file system would gain little.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// TLS configuration of a server. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    files: Option<Arc<Files>>,
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
        let mut config = builder()?
            .with_single_cert(vec![generated.cert.der().clone()], key.into())
            .map_err(TlsError::Setup)?;
        config.alpn_protocols = protocols();
        Ok(Self::config(Arc::new(config)))
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
        let mut config = builder()?.with_cert_resolver(Arc::clone(&files) as _);
        config.alpn_protocols = protocols();
        Ok(Self {
            config: Arc::new(config),
            files: Some(files),
        })
    }

    /// Uses a rustls configuration. Its ALPN protocols should be `http/1.1` only.
    #[must_use]
    pub fn config(config: Arc<ServerConfig>) -> Self {
        Self { config, files: None }
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

    /// Reloads the certificate files when they change. Never completes.
    pub(crate) async fn reload(&self, clock: &dyn Clock) {
        let Some(files) = &self.files else {
            return std::future::pending().await;
        };
        loop {
            clock.sleep_until(clock.now() + RELOAD_INTERVAL).await;
            let result = files.reload().await;
            files.log(result);
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

fn builder() -> Result<rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>, TlsError> {
    Ok(ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_no_client_auth())
}

fn protocols() -> Vec<Vec<u8>> {
    vec![b"http/1.1".to_vec()]
}
