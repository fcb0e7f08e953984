// SPDX-License-Identifier: Apache-2.0
//! Connections to the server of a cluster.

use std::{io, sync::Arc};

use kube::{Config, config::AuthInfo};
use steersman_core::Clock;

use super::{ClusterName, ConnectError, plugin::Plugin};
use crate::transport::{TokenError, TokenFile};

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
    plugin: Option<Plugin>,
    pub(super) host: String,
    /// The transport reloads it, because the transport sees when the server rejects the token.
    pub(super) token: Option<TokenFile>,
}

impl Links {
    /// Blocks until the exec plugin returns credentials, if one is configured.
    pub(super) fn new(
        cluster: ClusterName,
        mut server: Server,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        let (mut host, mut token, mut plugin) = ("in-process".to_owned(), None, None);
        if let Server::At(config) = &mut server {
            config.default_retry = false;
            if let Some(authority) = config.cluster_url.authority() {
                host = authority.to_string();
            }
            token = take_token(&cluster, &mut config.auth_info, clock)?;
            plugin = Plugin::run(config).map_err(|source| unauthorized(&cluster, config, source))?;
        }
        Ok(Self {
            cluster,
            server,
            plugin,
            host,
            token,
        })
    }

    /// Reports whether an exec plugin has returned credentials.
    pub(super) fn has_run_plugin(&self) -> bool {
        self.plugin.is_some()
    }

    /// Returns a client with separate connections. Requires the context of a tokio runtime.
    ///
    /// All clients use the connection settings of the cache: a watch or a log stream has to detect a dead peer, which
    /// kube's settings do not.
    pub(super) fn client(&self) -> Result<kube::Client, ConnectError> {
        match &self.server {
            Server::Service(service) => Ok(service.clone()),
            Server::At(config) => {
                let client = steersman_cache::client(config);
                let client = client.map_err(|source| senseless(&self.cluster, source))?;
                Ok(match &self.plugin {
                    Some(plugin) => plugin.authorize(client),
                    None => client,
                })
            }
        }
    }
}

impl Server {
    /// Reports whether `new` blocks on an exec plugin.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::At(config) if Plugin::is_named(&config.auth_info))
    }
}

fn senseless(cluster: &ClusterName, source: kube::Error) -> ConnectError {
    ConnectError::Config {
        cluster: cluster.clone(),
        source: Box::new(source),
    }
}

fn unauthorized(cluster: &ClusterName, config: &Config, source: kube::Error) -> ConnectError {
    let exec = config.auth_info.exec.as_ref();
    let Some(command) = exec.and_then(|exec| exec.command.clone()) else {
        return senseless(cluster, source);
    };
    ConnectError::Plugin {
        cluster: cluster.clone(),
        command,
        source: Box::new(source),
    }
}

/// Moves the token file out of kube's configuration, if kube would use it.
fn take_token(
    cluster: &ClusterName,
    auth: &mut AuthInfo,
    clock: &Arc<dyn Clock>,
) -> Result<Option<TokenFile>, ConnectError> {
    let is_by_file = auth.token.is_none() && auth.username.is_none() && auth.auth_provider.is_none();
    let Some(file) = auth.token_file.take_if(|_| is_by_file) else {
        return Ok(None);
    };
    // The file takes precedence: kube runs an exec plugin only without it.
    auth.exec = None;
    let read = TokenFile::read(file.clone().into(), clock.now());
    let read = read.map_err(|error| ConnectError::Token {
        cluster: cluster.clone(),
        path: file.into(),
        source: match error {
            TokenError::Read { source, .. } => source,
            other => io::Error::other(other),
        },
    });
    read.map(Some)
}
