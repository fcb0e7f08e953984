// SPDX-License-Identifier: Apache-2.0
//! A server that a test has for itself.

use crate::{Endpoint, Identity, RealServer, ServerKind, StartError};

/// A server for one test, of the kind that the test runs on. It may be stopped, stalled and restarted.
#[derive(Debug)]
pub struct OwnServer(Kind);

#[derive(Debug)]
enum Kind {
    Real(RealServer),
}

/// What the server comes with.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct OwnServerOptions {
    controllers: bool,
}

impl OwnServerOptions {
    /// With garbage collection and namespace deletion.
    pub fn controllers(mut self) -> Self {
        self.controllers = true;
        self
    }
}

impl OwnServer {
    pub(crate) async fn start(kind: ServerKind, options: OwnServerOptions) -> Result<Self, StartError> {
        match kind {
            ServerKind::Real => {
                let builder = RealServer::builder();
                let builder = if options.controllers {
                    builder.controller_manager()
                } else {
                    builder
                };
                builder.start().await.map(Kind::Real).map(Self)
            }
        }
    }

    /// Where it answers.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        let Kind::Real(server) = &self.0;
        server.endpoint()
    }

    /// Its administrator.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        let Kind::Real(server) = &self.0;
        server.admin()
    }

    /// A client that speaks as the administrator.
    ///
    /// # Panics
    /// When no client can be made, which ends the test.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.endpoint()
            .client(self.admin())
            .expect("the endpoint made a client before")
    }

    /// Ends the server at once, as a crash would; its data stay.
    pub fn stop(&mut self) {
        let Kind::Real(server) = &mut self.0;
        server.stop();
    }

    /// Starts it again at the same address and waits until it is ready.
    ///
    /// # Errors
    /// As [`RealServer::restart`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the server starting.
    pub async fn restart(&mut self) -> Result<(), StartError> {
        let Kind::Real(server) = &mut self.0;
        server.restart().await
    }

    /// Keeps connections open and answers nothing, until [`Self::resume`].
    pub fn stall(&self) {
        let Kind::Real(server) = &self.0;
        server.stall();
    }

    /// Lets a stalled server go on.
    pub fn resume(&self) {
        let Kind::Real(server) = &self.0;
        server.resume();
    }
}
