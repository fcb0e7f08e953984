// SPDX-License-Identifier: Apache-2.0
//! Where a server's certificate comes from.
//!
//! # Guarantees
//! 1. Certificate files that change are used within 10 s, for connections that begin after that.
//! 2. Files that are half written, or do not belong together, change nothing: the last good pair stays, and the log says
//!    once what is wrong.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
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
use steersman_core::Clock;
use tokio_rustls::TlsAcceptor;

use super::routes::causes;

/// How often files are looked at. Kubernetes takes up to a minute to bring a changed Secret to a Pod, so that watching
/// the file system would gain little.
const LOOK: Duration = Duration::from_secs(10);

/// How a server speaks TLS.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    files: Option<Arc<Files>>,
}

/// TLS could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file has something else in it.
    #[error("{} has no PEM block of the kind {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
        /// What was found.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not go together, or cannot be used.
    #[error("the certificate in {} and the key in {} cannot be used together", certificate.display(), key.display())]
    Pair {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// The certificate is not accepted.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

/// Two files, and what was in them when it last made sense.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    seen: Mutex<Seen>,
    reads: Counter,
    failures: Counter,
}

#[derive(Default)]
struct Seen {
    /// A digest, since a second copy of a key is one too many.
    digest: Vec<u8>,
    /// What is wrong at present.
    trouble: Option<String>,
}

impl Tls {
    /// A certificate for `localhost` that is made now, signed by itself, and kept in memory only.
    ///
    /// It keeps others from listening. Clients cannot tell the server from somebody else: they have to be told not to
    /// verify it.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn self_signed() -> Result<Self, TlsError> {
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).map_err(TlsError::SelfSigned)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config = builder()?
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .map_err(TlsError::Setup)?;
        config.alpn_protocols = protocols();
        Ok(Self::config(Arc::new(config)))
    }

    /// A certificate (with its chain) and a key from PEM files such as `tls.crt` and `tls.key`, which are looked at
    /// every 10 s while the server runs.
    ///
    /// # Errors
    /// If the files cannot be read, or have no certificate and key that go together.
    pub fn files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let pair = Pair {
            certificate: read(&certificate, std::fs::read(&certificate))?,
            key: read(&key, std::fs::read(&key))?,
        };
        let files = Arc::new(Files {
            current: RwLock::new(Arc::new(pair.certified(&certificate, &key)?)),
            seen: Mutex::new(Seen {
                digest: pair.digest(),
                trouble: None,
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

    /// Whatever this configuration says. It should offer `http/1.1` and nothing else as application protocol.
    #[must_use]
    pub fn config(config: Arc<ServerConfig>) -> Self {
        Self { config, files: None }
    }

    /// Reports how often the files were read, by the names that controller-runtime uses.
    pub(crate) fn register(&self, registry: &mut Registry) {
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

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Looks at the files from time to time, for ever.
    pub(super) async fn keep_fresh(&self, clock: &dyn Clock) {
        let Some(files) = &self.files else {
            return std::future::pending().await;
        };
        loop {
            clock.sleep_until(clock.now() + LOOK).await;
            let looked = files.look().await;
            files.note(looked);
        }
    }
}

impl Files {
    /// Whether there was something new.
    async fn look(&self) -> Result<bool, TlsError> {
        self.reads.inc();
        let pair = Pair {
            certificate: read(&self.certificate, tokio::fs::read(&self.certificate).await)?,
            key: read(&self.key, tokio::fs::read(&self.key).await)?,
        };
        let digest = pair.digest();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.digest == digest {
            return Ok(false);
        }
        let fresh = Arc::new(pair.certified(&self.certificate, &self.key)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        seen.digest = digest;
        Ok(true)
    }

    fn note(&self, looked: Result<bool, TlsError>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let certificate = self.certificate.display();
        match looked {
            Ok(changed) => {
                if changed {
                    tracing::info!(%certificate, "the certificate has changed and is used");
                }
                seen.trouble = None;
            }
            Err(error) => {
                self.failures.inc();
                let trouble = causes(&error);
                if seen.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(%certificate, error = trouble, "the last good certificate stays in use");
                    seen.trouble = Some(trouble);
                }
            }
        }
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
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

/// Names only.
impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries([&self.certificate, &self.key]).finish()
    }
}

/// What was read.
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
        let bad = |path: &Path, wanted| {
            let path = path.to_owned();
            move |source| TlsError::Pem { path, wanted, source }
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(bad(certificate, "CERTIFICATE"))?;
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(bad(key, "PRIVATE KEY"))?;
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

/// Named, so that a process whose crates bring several is not asked to choose.
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
