// SPDX-License-Identifier: Apache-2.0
//! The embedded API server for one test.

use std::net::SocketAddr;

use steersman_apiserver::{ApiServer, ListenError, Listener};

use crate::{Endpoint, Identity, token};

/// An embedded API server on a free port of the loopback address. It starts in milliseconds, so that each test has its
/// own. Dropping it stops it.
#[derive(Debug)]
pub struct EmbeddedServer {
    server: ApiServer,
    endpoint: Endpoint,
    admin: Identity,
    _listener: Listener,
}

impl EmbeddedServer {
    /// Starts a server, with or without garbage collection and namespace deletion.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(controllers: bool) -> Result<Self, ListenError> {
        let admin = Identity::new("admin", token::random() + &token::random());
        let identity = steersman_apiserver::Identity::user(admin.name()).group("system:masters");
        let server = ApiServer::builder()
            .rbac(true)
            .token(admin.token(), identity)
            .garbage_collection(controllers)
            .namespace_deletion(controllers)
            .quota_usage(controllers)
            .build();
        let listener = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let endpoint = Endpoint::new(listener.url(), listener.ca_pem());
        Ok(Self {
            server,
            endpoint,
            admin,
            _listener: listener,
        })
    }

    /// Returns the server, for features that only it has: internal faults and its revision.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// Returns the endpoint of the server.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the administrator, who has all permissions.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }
}
