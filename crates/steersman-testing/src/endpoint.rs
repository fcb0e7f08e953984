// SPDX-License-Identifier: Apache-2.0
//! Where an API server answers, and who asks.

use std::fmt;

use k8s_openapi::ByteString;
use kube::{Client, Config, config::AuthInfo};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};

/// The address of an API server and the certificate authority that vouches for it.
///
/// It is plain data, so that it can be handed to another test, runtime or process; a [`Client`] cannot, because its
/// tasks end with the runtime that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    url: String,
    ca_pem: String,
}

/// A name and the bearer token that proves it. The token shows in no `Debug` output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    name: String,
    token: String,
}

/// No client could be made for an endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address is not a URL.
    #[error("{url} is not the address of an API server")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// The certificate of the authority cannot be read.
    #[error("the certificate authority of {url} is not a PEM certificate")]
    Ca {
        /// The server that it belongs to.
        url: String,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// kube refuses the configuration.
    #[error("no client for {url}")]
    Client {
        /// The server that it was meant for.
        url: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
}

impl Endpoint {
    /// An endpoint from its parts.
    #[must_use]
    pub fn new(url: impl Into<String>, ca_pem: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca_pem: ca_pem.into(),
        }
    }

    /// The address, such as `https://127.0.0.1:6443`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate authority.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A configuration that speaks as `identity`, without kube's own retries: a test wants to see each answer.
    ///
    /// # Errors
    /// When address or certificate make no sense.
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

    /// A client that speaks as `identity`. It lives as long as the runtime that this is called on.
    ///
    /// # Errors
    /// When address or certificate make no sense.
    pub fn client(&self, identity: &Identity) -> Result<Client, ClientError> {
        Client::try_from(self.config(identity)?).map_err(|source| ClientError::Client {
            url: self.url.clone(),
            source: Box::new(source),
        })
    }

    /// A kubeconfig file for other programs. It holds the token: keep it in a private directory.
    #[must_use]
    pub fn kubeconfig(&self, identity: &Identity) -> String {
        // JSON is YAML, and this one is read by kubectl, client-go and kube alike.
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
    /// An identity from its parts.
    #[must_use]
    pub fn new(name: impl Into<String>, token: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            token: token.into(),
        }
    }

    /// The name by which logs and recordings call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret itself.
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
