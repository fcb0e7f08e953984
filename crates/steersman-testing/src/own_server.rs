// SPDX-License-Identifier: Apache-2.0
//! A separate server for one test.

use steersman_assets::describe;

use crate::{
    EmbeddedServer, Endpoint, FaultProxy, Identity, RealServer, RealServerBuilder, ServerKind, StartError,
    proxy::{Frozen, Unplugged},
};

/// A server for one test, of the kind that the test runs on. The test can stop, stall and restart it.
#[derive(Debug)]
pub struct OwnServer(Kind);

#[derive(Debug)]
enum Kind {
    Real(Box<RealServer>),
    Embedded(Box<Embedded>),
}

/// The embedded server runs in this process and cannot be stopped or stalled alone, so its network is interrupted
/// instead.
#[derive(Debug)]
struct Embedded {
    server: EmbeddedServer,
    network: FaultProxy,
    stopped: Option<Unplugged>,
    stalled: Option<Frozen>,
}

/// Options of the server.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct OwnServerOptions {
    controllers: bool,
    short_history: bool,
}

impl OwnServerOptions {
    /// Enables garbage collection, namespace deletion and quota usage.
    pub fn controllers(mut self) -> Self {
        self.controllers = true;
        self
    }

    /// Compacts the history of objects every second, so that watches expire; see [`OwnServer::compacted`]. The real
    /// server then runs without its watch cache, which would keep a longer history.
    pub fn short_history(mut self) -> Self {
        self.short_history = true;
        self
    }
}

impl OwnServer {
    pub(crate) async fn start(kind: ServerKind, options: OwnServerOptions) -> Result<Self, String> {
        let kind = match kind {
            ServerKind::Real => {
                let builder = RealServer::builder();
                let builder = if options.controllers {
                    builder.controller_manager()
                } else {
                    builder
                };
                let flags = ["--etcd-compaction-interval=1s", "--watch-cache=false"];
                let flags = flags.into_iter().filter(|_| options.short_history);
                let builder = flags.fold(builder, RealServerBuilder::flag);
                Kind::Real(Box::new(builder.start().await.map_err(|error| describe(&error))?))
            }
            ServerKind::Embedded => {
                let server = EmbeddedServer::start(options.controllers)
                    .await
                    .map_err(|error| describe(&error))?;
                let network = FaultProxy::start(server.endpoint())
                    .await
                    .map_err(|error| describe(&error))?;
                Kind::Embedded(Box::new(Embedded {
                    server,
                    network,
                    stopped: None,
                    stalled: None,
                }))
            }
        };
        Ok(Self(kind))
    }

    /// Returns the endpoint of the server.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        match &self.0 {
            Kind::Real(server) => server.endpoint(),
            Kind::Embedded(embedded) => embedded.network.endpoint(),
        }
    }

    /// Returns the administrator.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        match &self.0 {
            Kind::Real(server) => server.admin(),
            Kind::Embedded(embedded) => embedded.server.admin(),
        }
    }

    /// Returns a client for the administrator.
    ///
    /// # Panics
    /// When the client cannot be created, which ends the test.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.endpoint()
            .client(self.admin())
            .expect("the endpoint made a client before")
    }

    /// Waits until the history up to this resource version is compacted: the server answers a watch of ConfigMaps from
    /// there with 410. The server must have been started with a [short history](OwnServerOptions::short_history).
    ///
    /// # Panics
    /// If the server does not answer, which ends the test.
    pub async fn compacted(&self, resource_version: &str) {
        if let Kind::Embedded(embedded) = &self.0 {
            embedded.server.server().faults().compact();
        }
        let path =
            format!("/api/v1/configmaps?watch=true&timeoutSeconds=1&resourceVersion={resource_version}");
        let client = self.client();
        loop {
            let request = http::Request::get(&path).body(Vec::new());
            let request = request.expect("a path with a number makes a request");
            match client.request_text(request).await {
                Ok(events) if events.contains(r#""code":410"#) => return,
                Err(kube::Error::Api(status)) if status.code == 410 => return,
                Ok(_) => {}
                Err(error) => panic!("cannot watch ConfigMaps: {error}"),
            }
        }
    }

    /// Stops the server at once, like a crash; its data are kept.
    pub fn stop(&mut self) {
        match &mut self.0 {
            Kind::Real(server) => server.stop(),
            Kind::Embedded(embedded) => embedded.stopped = Some(embedded.network.unplug()),
        }
    }

    /// Starts the server again at the same address and waits until it is ready.
    ///
    /// # Errors
    /// Same as [`RealServer::restart`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the server continues to start.
    pub async fn restart(&mut self) -> Result<(), StartError> {
        match &mut self.0 {
            Kind::Real(server) => server.restart().await,
            Kind::Embedded(embedded) => {
                embedded.network.cut_connections();
                embedded.stopped = None;
                Ok(())
            }
        }
    }

    /// Keeps connections open and answers no request, until [`Self::resume`].
    pub fn stall(&mut self) {
        match &mut self.0 {
            Kind::Real(server) => server.stall(),
            Kind::Embedded(embedded) => embedded.stalled = Some(embedded.network.freeze()),
        }
    }

    /// Resumes a stalled server.
    pub fn resume(&mut self) {
        match &mut self.0 {
            Kind::Real(server) => server.resume(),
            Kind::Embedded(embedded) => embedded.stalled = None,
        }
    }
}
