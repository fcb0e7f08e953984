// SPDX-License-Identifier: Apache-2.0
//! Context and options of informers.

use std::{fmt, sync::Arc, time::Duration};

use kube::Client;
use steersman_core::{Clock, Random, Spawner};

use crate::{Liveness, ReflectorOptions, StoreOptions, presence_source::PresenceSource};

/// Shared parts of all informers of a cluster: client, clock, random numbers and task spawner.
#[derive(Clone)]
pub struct InformerContext {
    pub(crate) client: Client,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<Random>,
    pub(crate) spawner: Spawner,
    pub(crate) known: PresenceSource,
    pub(crate) liveness: Liveness,
}

impl fmt::Debug for InformerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerContext")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

impl InformerContext {
    /// Creates a context. Requests use `client`, and tasks run on `spawner`.
    ///
    /// For large caches, take a client from [`client`](crate::client), and run it and the spawner on a dedicated thread (a
    /// current-thread runtime). Then bytes are parsed on the thread that reads them. To move them between threads would double
    /// the cost of a list.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>, random: Arc<Random>, spawner: Spawner) -> Self {
        Self {
            client,
            clock,
            random,
            spawner,
            known: PresenceSource::default(),
            liveness: Liveness::default(),
        }
    }

    /// Sets the shared liveness signal of the server. Any sender of requests to the same server reports an answer there.
    /// Reflectors in back-off retry when the server answers.
    #[must_use]
    pub fn liveness(self, liveness: Liveness) -> Self {
        Self { liveness, ..self }
    }

    /// Sets the source that knows which kinds the server has.
    pub(crate) fn knowing(self, known: PresenceSource) -> Self {
        Self { known, ..self }
    }

    pub(crate) fn known(&self) -> &PresenceSource {
        &self.known
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the task spawner.
    #[must_use]
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }
}

/// Options of an informer.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct InformerOptions {
    pub(super) reflector: ReflectorOptions,
    pub(super) store: StoreOptions,
    pub(super) resync: Option<Duration>,
}

impl InformerOptions {
    /// Sets the options for listing and watching.
    pub fn reflector(mut self, options: ReflectorOptions) -> Self {
        self.reflector = options;
        self
    }

    /// Sets the options of the store.
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options;
        self
    }

    /// Sets the resync interval of handlers without their own interval. At each interval, up to a tenth earlier or later, a
    /// handler receives every object again. Default: no resync; zero also means no resync.
    pub fn resync(mut self, every: Duration) -> Self {
        self.resync = Some(every);
        self
    }
}
