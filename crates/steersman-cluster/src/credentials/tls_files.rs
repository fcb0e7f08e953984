// SPDX-License-Identifier: Apache-2.0
//! Files of the CA and of the client certificate, which change.

use std::{io, path::PathBuf, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{Config, config::AuthInfo};
use steersman_core::{MonotonicTime, Mutex};

/// Time for which the files are not read again.
const FRESH: Duration = Duration::from_secs(60);

/// A client certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The certificate has no key.
    #[error("the client certificate {certificate} has no key; set `client-key` or `client-key-data`")]
    NoKey {
        /// The file, or the field of the kubeconfig.
        certificate: String,
    },
    /// The key has no certificate.
    #[error("the client key {key} has no certificate; set `client-certificate` or `client-certificate-data`")]
    NoCertificate {
        /// The file, or the field of the kubeconfig.
        key: String,
    },
}

/// Paths of the files, as far as the configuration names files.
#[derive(Debug)]
pub(super) struct TlsFiles {
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    contents: [Option<Content>; 3],
    version: u64,
    /// `None` if they are read before the next request.
    read: Option<MonotonicTime>,
}

/// Content of a file. `Debug` does not show it: it can be a key.
#[derive(Clone, PartialEq, Eq)]
struct Content(Vec<u8>);

impl TlsFiles {
    /// Reads the files of a configuration. `None` if it names none.
    pub(super) fn read(config: &Config, now: MonotonicTime) -> Result<Option<Self>, CertificateError> {
        let auth = &config.auth_info;
        check_pair(auth)?;
        let file = |data: bool, path: &Option<String>| path.as_ref().filter(|_| !data).map(PathBuf::from);
        let files = Self {
            authority: config.root_cert_file.clone(),
            certificate: file(auth.client_certificate_data.is_some(), &auth.client_certificate),
            key: file(auth.client_key_data.is_some(), &auth.client_key),
            known: Mutex::new(Known {
                contents: [None, None, None],
                version: 0,
                read: Some(now),
            }),
        };
        if files.paths().all(|path| path.is_none()) {
            return Ok(None);
        }
        files.known.lock().contents = files.contents()?;
        Ok(Some(files))
    }

    /// Returns the number of the current contents; reads the files if that was a minute ago, or a connection failed.
    pub(super) fn version(&self, now: MonotonicTime) -> u64 {
        let known = self.known.lock();
        if known.read.is_some_and(|read| now.saturating_since(read) < FRESH) {
            return known.version;
        }
        drop(known);
        let contents = self.contents();
        let mut known = self.known.lock();
        known.read = Some(now);
        match contents {
            Ok(contents) if contents != known.contents => {
                known.contents = contents;
                known.version += 1;
                tracing::debug!(files = ?self.paths().flatten().collect::<Vec<_>>(), "TLS files changed");
            }
            Ok(_) => {}
            Err(error) => {
                let error = steersman_core::error_chain(&error);
                tracing::warn!(%error, "cannot reload a TLS file; using the last content");
            }
        }
        known.version
    }

    /// Reads the files before the next request.
    pub(super) fn expire(&self) {
        self.known.lock().read = None;
    }

    /// Puts the contents of the client certificate into a configuration, so that it is used as it was read.
    pub(super) fn apply(&self, config: &mut Config) {
        let known = self.known.lock();
        let auth = &mut config.auth_info;
        if let [_, Some(certificate), _] = &known.contents {
            auth.client_certificate_data = Some(STANDARD.encode(&certificate.0));
        }
        if let [_, _, Some(key)] = &known.contents {
            auth.client_key_data = Some(STANDARD.encode(&key.0).into());
        }
    }

    fn paths(&self) -> impl Iterator<Item = Option<&PathBuf>> {
        [&self.authority, &self.certificate, &self.key]
            .into_iter()
            .map(Option::as_ref)
    }

    fn contents(&self) -> Result<[Option<Content>; 3], CertificateError> {
        let mut contents = [None, None, None];
        for (content, path) in contents.iter_mut().zip(self.paths()) {
            let Some(path) = path else { continue };
            let read = std::fs::read(path).map_err(|source| CertificateError::Read {
                path: path.clone(),
                source,
            })?;
            *content = Some(Content(read));
        }
        Ok(contents)
    }
}

fn check_pair(auth: &AuthInfo) -> Result<(), CertificateError> {
    let certificate = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(_), _) => Some("`client-certificate-data`".to_owned()),
        (None, path) => path.clone(),
    };
    let key = match (&auth.client_key_data, &auth.client_key) {
        (Some(_), _) => Some("`client-key-data`".to_owned()),
        (None, path) => path.clone(),
    };
    match (certificate, key) {
        (Some(certificate), None) => Err(CertificateError::NoKey { certificate }),
        (None, Some(key)) => Err(CertificateError::NoCertificate { key }),
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
