// SPDX-License-Identifier: Apache-2.0
//! Certificates that a server certificate is verified with.
//!
//! rustls does not check whether a trust anchor has expired, which client-go and OpenSSL do. So expired certificates are
//! left out here, and a configuration that has no others is an error.

mod validity;

use std::{
    fmt, io,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use kube::Config;
use rustls::pki_types::{CertificateDer, pem::PemObject};

/// The certificate authority of a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAuthority {
    /// The file cannot be read.
    #[error("cannot read the CA file {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// There is no certificate in it.
    #[error("{place} has no PEM certificate")]
    Empty {
        /// The file, or the field of the kubeconfig.
        place: AuthorityPlace,
    },
    /// All certificates in it have expired.
    #[error("{place} has expired; replace it with the current certificate of the cluster")]
    Expired {
        /// The file, or the field of the kubeconfig.
        place: AuthorityPlace,
    },
}

/// Place of a certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthorityPlace {
    /// A file.
    File(PathBuf),
    /// The configuration, such as `certificate-authority-data` of the kubeconfig.
    Data,
    /// The root certificates of the system.
    System,
}

impl fmt::Display for AuthorityPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the CA file {}", path.display()),
            Self::Data => f.write_str("the CA of the configuration (`certificate-authority-data`)"),
            Self::System => f.write_str("the root certificates of the system (the configuration has no CA)"),
        }
    }
}

/// Reads the certificate authority of a configuration into `root_cert`, and returns its place.
pub(super) fn load(config: &mut Config) -> Result<AuthorityPlace, InvalidAuthority> {
    let place = match (config.root_cert_file.take(), &config.root_cert) {
        (Some(path), _) => AuthorityPlace::File(path),
        (None, Some(_)) => AuthorityPlace::Data,
        (None, None) => return Ok(AuthorityPlace::System),
    };
    if config.accept_invalid_certs {
        return Ok(place);
    }
    if let AuthorityPlace::File(path) = &place {
        let pem = std::fs::read(path).map_err(|source| InvalidAuthority::Read {
            path: path.clone(),
            source,
        })?;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        config.root_cert = Some(certificates.map(|certificate| certificate.to_vec()).collect());
    }
    let certificates = config.root_cert.get_or_insert_default();
    if certificates.is_empty() {
        return Err(InvalidAuthority::Empty { place });
    }
    let now = now();
    // A certificate without a readable time is left to rustls.
    certificates.retain(|certificate| validity::not_after(certificate).is_none_or(|end| end > now));
    if certificates.is_empty() {
        return Err(InvalidAuthority::Expired { place });
    }
    Ok(place)
}

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid by the wall clock, as in TLS itself"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().try_into().unwrap_or(i64::MAX))
}
