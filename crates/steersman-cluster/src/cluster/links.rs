// SPDX-License-Identifier: Apache-2.0
//! Connections to the server of a cluster.

use std::{io, sync::Arc};

use kube::{Config, client::ClientBuilder, config::AuthInfo};
use steersman_core::Clock;

use super::{ClusterName, builder::ConnectError};
use crate::transport::{TokenError, TokenFile};

/// What a cluster is connected to.
pub(super) enum Server {
    /// One that has to be connected to.
    At(Box<Config>),
    /// What takes requests as it is.
    Service(kube::Client),
}

/// Makes connections to one server.
pub(super) struct Links<'a> {
    cluster: &'a ClusterName,
    server: Server,
    pub(super) host: String,
    /// Looked after by the transport, which knows when it is of no use any more.
    pub(super) token: Option<TokenFile>,
}

impl<'a> Links<'a> {
    pub(super) fn new(
        cluster: &'a ClusterName,
        mut server: Server,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        let (mut host, mut token) = ("in-process".to_owned(), None);
        if let Server::At(config) = &mut server {
            config.default_retry = false;
            if let Some(authority) = config.cluster_url.authority() {
                host = authority.to_string();
            }
            token = take_token(cluster, &mut config.auth_info, clock)?;
        }
        Ok(Self {
            cluster,
            server,
            host,
            token,
        })
    }

    /// A client with connections of its own, as far as there are connections. It needs a runtime around.
    pub(super) fn base(&self) -> Result<kube::Client, ConnectError> {
        self.connect(|config| Ok(ClientBuilder::try_from(config.clone())?.build()))
    }

    /// The same with connections that carry long lists cheaply.
    pub(super) fn for_lists(&self) -> Result<kube::Client, ConnectError> {
        self.connect(steersman_cache::client)
    }

    fn connect(
        &self,
        connect: impl FnOnce(&Config) -> Result<kube::Client, kube::Error>,
    ) -> Result<kube::Client, ConnectError> {
        match &self.server {
            Server::Service(service) => Ok(service.clone()),
            Server::At(config) => connect(config).map_err(|source| ConnectError::Config {
                cluster: self.cluster.clone(),
                source: Box::new(source),
            }),
        }
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
