// SPDX-License-Identifier: Apache-2.0
//! Connections to the server of a cluster.

use std::{io, sync::Arc};

use kube::{Config, client::ClientBuilder};
use steersman_core::Clock;

use super::{ClusterName, builder::ConnectError};
use crate::transport::{TokenError, TokenFile};

/// Makes connections to one server.
pub(super) struct Links<'a> {
    cluster: &'a ClusterName,
    config: Option<Config>,
    service: Option<kube::Client>,
    pub(super) host: String,
    /// Looked after by the transport, which knows when it is of no use any more.
    pub(super) token: Option<TokenFile>,
}

impl<'a> Links<'a> {
    pub(super) fn new(
        cluster: &'a ClusterName,
        mut config: Option<Config>,
        service: Option<kube::Client>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, ConnectError> {
        let mut token = None;
        if let Some(config) = config.as_mut().filter(|_| service.is_none()) {
            config.default_retry = false;
            let auth = &mut config.auth_info;
            let is_by_file = auth.token.is_none() && auth.username.is_none() && auth.auth_provider.is_none();
            if let Some(file) = auth.token_file.take_if(|_| is_by_file) {
                let read = TokenFile::read(file.clone().into(), clock.now());
                let read = read.map_err(|error| ConnectError::Token {
                    cluster: cluster.clone(),
                    path: file.into(),
                    source: match error {
                        TokenError::Read { source, .. } => source,
                        other => io::Error::other(other),
                    },
                });
                token = Some(read?);
            }
        }
        let authority = config.as_ref().and_then(|config| config.cluster_url.authority());
        Ok(Self {
            cluster,
            host: authority.map_or_else(|| "in-process".to_owned(), ToString::to_string),
            config,
            service,
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
        match (&self.service, &self.config) {
            (Some(service), _) => Ok(service.clone()),
            (None, Some(config)) => connect(config).map_err(|source| ConnectError::Config {
                cluster: self.cluster.clone(),
                source: Box::new(source),
            }),
            (None, None) => Err(ConnectError::NoRuntime {
                cluster: self.cluster.clone(),
            }),
        }
    }
}
