// SPDX-License-Identifier: Apache-2.0
//! Address and credentials of an API server.

use std::fmt;

use k8s_openapi::ByteString;
use kube::{Client, Config, config::AuthInfo};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};

/// Address of an API server and its certificate authority.
///
/// It is plain data, so that it can be passed to another test, runtime or process. A [`Client`] cannot, because its
/// tasks end with the runtime that created it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    url: String,
    ca_pem: String,
}

/// A name and its bearer token. `Debug` output does not show the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    name: String,
    token: String,
}

/// A client cannot be created for an endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address is not a URL.
    #[error("{url} is not the address of an API server")]
    Url {
        /// The given text.
        url: String,
        /// Cause.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// The certificate of the authority cannot be parsed.
    #[error("the certificate authority of {url} is not a PEM certificate")]
    Ca {
        /// Address of the server.
        url: String,
        /// Cause.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// kube rejects the configuration.
    #[error("cannot create a client for {url}")]
    Client {
        /// Address of the server.
        url: String,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Endpoint {
    /// Creates an endpoint from its parts.
    #[must_use]
    pub fn new(url: impl Into<String>, ca_pem: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_pem: ca_pem.into(),
        }
    }

    /// Returns the address, such as `https://127.0.0.1:6443`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the certificate authority.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns a configuration for `identity`, without kube's retries, so that a test sees each answer.
    ///
    /// # Errors
    /// When the address or the certificate is invalid.
    pub fn config(&self, identity: &Identity) -> Result<Config, ClientError> {
        let url = self.url.parse().map_err(|source| ClientError::Url {
            url: self.url.clone(),
            source,
        })?;
        let mut config = Config::new(url);
        config.root_cert = Some(vec![self.ca()?.to_vec()]);
        config.auth_info = AuthInfo {
            token: Some(identity.token.clone().into()),
            ..AuthInfo::default()
        };
        config.default_retry = false;
        Ok(config)
    }

    /// Returns a client for `identity`. It is valid until the current runtime ends.
    ///
    /// # Errors
    /// When the address or the certificate is invalid.
    pub fn client(&self, identity: &Identity) -> Result<Client, ClientError> {
        Client::try_from(self.config(identity)?).map_err(|source| ClientError::Client {
            url: self.url.clone(),
            source: Box::new(source),
        })
    }

    /// Returns a kubeconfig file for other programs. It contains the token: keep it in a private directory.
    #[must_use]
    pub fn kubeconfig(&self, identity: &Identity) -> String {
        // JSON is YAML; kubectl, client-go and kube can all read it.
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": self.url,
                "certificate-authority-data": ByteString(self.ca_pem.clone().into_bytes()),
            }}],
            "users": [{"name": identity.name, "user": {"token": identity.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": identity.name}}],
        })
        .to_string()
    }

    pub(crate) fn ca(&self) -> Result<CertificateDer<'static>, ClientError> {
        CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).map_err(|source| ClientError::Ca {
            url: self.url.clone(),
            source,
        })
    }
}

impl Identity {
    /// Creates an identity from its parts.
    #[must_use]
    pub fn new(name: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            token: token.into(),
        }
    }

    /// Returns the name that logs and recordings show.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
