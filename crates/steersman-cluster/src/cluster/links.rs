// SPDX-License-Identifier: Apache-2.0
//! Connections to the server of a cluster.

use std::{io, sync::Arc, time::Duration};

use kube::Config;
use steersman_cache::ClientError;
use steersman_core::Clock;

use super::{ClusterName, ConnectError, auth_provider::AuthProvider};
use crate::{
    credentials::{Credentials, InvalidCredentials, TokenError},
    transport::Link,
};

/// Destination of requests.
pub(super) enum Server {
    /// A server to connect to.
    At(Box<Config>),
    /// A service that takes requests directly.
    Service(kube::Client),
}

/// Opens connections to one server.
pub(super) struct Links {
    cluster: ClusterName,
    server: Server,
    provider: Option<Arc<AuthProvider>>,
    pub(super) host: String,
    /// The transport renews them, because it sees when the server rejects them.
    pub(super) credentials: Arc<Credentials>,
}

impl Links {
    /// Blocks until the exec plugin returns credentials, if one is configured.
    pub(super) fn new(
        cluster: ClusterName,
        mut server: Server,
        clock: &Arc<dyn Clock>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let (host, provider, credentials) = match &mut server {
            Server::Service(_) => ("in-process".to_owned(), None, Credentials::none(clock)),
            Server::At(config) => {
                config.default_retry = false;
                let authority = config.cluster_url.authority();
                let host = authority.map_or_else(String::new, ToString::to_string);
                let credentials = Credentials::take(config, timeout, clock);
                let credentials = credentials.map_err(|error| unusable(&cluster, error))?;
                let provider =
                    AuthProvider::take(config).map_err(|source| invalid(&cluster, source.into()))?;
                (host, provider, credentials)
            }
        };
        Ok(Self {
            cluster,
            server,
            provider: provider.map(Arc::new),
            host,
            credentials: Arc::new(credentials),
        })
    }

    /// Returns separate connections. Requires the context of a tokio runtime.
    ///
    /// All clients use the connection settings of the cache: a watch or a log stream has to detect a dead peer, which
    /// kube's settings do not.
    pub(super) fn open(&self) -> Result<Link, ConnectError> {
        let config = match &self.server {
            Server::Service(service) => return Ok(Link::fixed(service.clone())),
            Server::At(config) => config.clone(),
        };
        let (credentials, provider) = (Arc::clone(&self.credentials), self.provider.clone());
        // Read before the certificates: if they change in between, they are only used once more.
        let version = credentials.tls_version();
        let open = move || {
            let mut config = config.clone();
            credentials.apply(&mut config);
            let client = steersman_cache::client(&config)?;
            Ok(match &provider {
                Some(provider) => provider.authorize(client),
                None => client,
            })
        };
        Link::open(Arc::new(open), version).map_err(|source| invalid(&self.cluster, source))
    }
}

impl Server {
    /// Reports whether `new` blocks on an exec plugin.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::At(config) if Credentials::block(&config.auth_info))
    }
}

fn invalid(cluster: &ClusterName, source: ClientError) -> ConnectError {
    ConnectError::Config {
        cluster: cluster.clone(),
        source: Box::new(source),
    }
}

fn unusable(cluster: &ClusterName, error: InvalidCredentials) -> ConnectError {
    let cluster = cluster.clone();
    match error {
        InvalidCredentials::Plugin(command, source) => ConnectError::Plugin {
            cluster,
            command,
            source,
        },
        InvalidCredentials::Certificate(source) => ConnectError::Certificate { cluster, source },
        InvalidCredentials::Token(path, error) => ConnectError::Token {
            cluster,
            path,
            source: match error {
                TokenError::Read { source, .. } => source,
                other => io::Error::other(other),
            },
        },
    }
}
