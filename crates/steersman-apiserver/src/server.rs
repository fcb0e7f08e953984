// SPDX-License-Identifier: Apache-2.0
//! The server: its handle, and the state that requests share.

mod answer;
mod builder;
mod deadline;
mod response;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    auth::Identity,
    background,
    clock::Clock,
    fault::Faults,
    observe::Observer,
    service::Service,
    state::{Context, State},
    workloads,
};

pub use builder::Builder;
pub(crate) use response::failed;

/// Timeout of a request that waits for a future revision.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// A Kubernetes API server in this process. Clones share one server.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) clock: Arc<dyn Clock>,
    /// Publishes the newest revision to waiting requests and watches.
    pub(crate) revisions: watch::Sender<u64>,
    observer: Option<Observer>,
    /// The addresses of the services that webhooks name, by namespace, name and port.
    pub(crate) services: BTreeMap<(String, String, u16), SocketAddr>,
    state: Mutex<State>,
}

impl ApiServer {
    /// Creates a builder with default options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Creates a service for in-process clients. Requests without a token act as [`Identity::admin`].
    #[must_use]
    pub fn service(&self) -> Service {
        self.service_as(Identity::admin())
    }

    /// Creates a service as [`Self::service`] does; requests without a token act as `identity`.
    #[must_use]
    pub fn service_as(&self, identity: Identity) -> Service {
        Service::new(Arc::clone(&self.inner), identity)
    }

    /// Returns the control of fault injection.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(Arc::clone(&self.inner))
    }

    /// Returns the newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.lock().store.revision()
    }

    /// Runs one item of background work; returns false if the queue is empty.
    ///
    /// Only servers built with [`Builder::stepped`] need this call; other servers run background work with each
    /// request.
    pub fn step(&self) -> bool {
        let mut state = self.inner.lock();
        let mut cx = Context::of_server(&mut state, self.inner.clock.now());
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        let done = background::step(&mut cx);
        let revision = state.store.revision();
        drop(state);
        self.inner.announce(revision);
        done
    }

    /// Runs all queued background work; returns the number of items.
    pub fn settle(&self) -> usize {
        std::iter::from_fn(|| self.step().then_some(())).count()
    }

    /// Registers a bearer token for an identity.
    pub fn add_token(&self, token: impl Into<String>, identity: Identity) {
        self.inner.lock().authenticator.insert(token.into(), identity);
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug, but the state is still a fold of the log, so the server continues.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, revision: u64) {
        self.revisions.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
    }

    /// Returns the time until simulated workloads have work to do; `None` if nothing is scheduled.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let due = self.lock().world.next_due()?;
        Some(due.duration_since(self.clock.now()).unwrap_or_default())
    }

    /// Runs the simulated work that is due.
    pub(crate) fn tick(&self) {
        let mut state = self.lock();
        let mut cx = Context::of_server(&mut state, self.clock.now());
        workloads::wake(&mut cx);
        if cx.state.settings.immediate {
            while background::step(&mut cx) {}
        }
        let revision = state.store.revision();
        drop(state);
        self.announce(revision);
    }
}
