// SPDX-License-Identifier: Apache-2.0
//! Connections to the server of a cluster.

use std::{io, sync::Arc};

use kube::{Config, config::AuthInfo};
use steersman_core::Clock;

use super::{ClusterName, builder::ConnectError, plugin::Plugin};
use crate::transport::{TokenError, TokenFile};

/// What a cluster is connected to.
pub(super) enum Server {
    /// One that has to be connected to.
    At(Box<Config>),
    /// What takes requests as it is.
    Service(kube::Client),
}

/// Makes connections to one server.
pub(super) struct Links {
    cluster: ClusterName,
    server: Server,
    plugin: Option<Plugin>,
    pub(super) host: String,
    /// Looked after by the transport, which knows when it is of no use any more.
    pub(super) token: Option<TokenFile>,
}

impl Links {
    /// It waits for the program that gives credentials, if there is one.
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

    /// A client with connections of its own, as far as there are connections. It needs a runtime around.
    ///
    /// They are those of a cache for all: somebody who watches or follows a log should hear of a peer that has gone, and
    /// kube's would not tell.
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
    /// Whether a program has to be waited for that gives credentials.
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

/// Takes the file with the token out of what kube looks after, where that is what it would use.
fn take_token(
    cluster: &ClusterName,
    auth: &mut AuthInfo,
    clock: &Arc<dyn Clock>,
) -> Result<Option<TokenFile>, ConnectError> {
    let is_by_file = auth.token.is_none() && auth.username.is_none() && auth.auth_provider.is_none();
    let Some(file) = auth.token_file.take_if(|_| is_by_file) else {
        return Ok(None);
    };
    // The file comes first. A program would be asked only without it.
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
