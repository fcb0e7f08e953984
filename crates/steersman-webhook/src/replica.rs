// SPDX-License-Identifier: Apache-2.0
//! The part of every replica: it serves, renews its leaf, and becomes ready.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use steersman_cluster::{Client, Cluster};
use steersman_core::{Clock, MonotonicTime, Mutex, ObjectKey, error_chain};
use steersman_endpoints::{CheckError, Server};
use steersman_runtime::{BoxError, RunContext, RunPolicy, Runnable};

use crate::{
    certificates::{Managed, leaf::CurrentLeaf, rotation::Found, secret::CaState},
    metrics::Metrics,
    registration::Declarations,
    self_call,
};

/// Interval of checks while the replica is not ready.
const NOT_READY_INTERVAL: Duration = Duration::from_secs(1);

/// The state that the runnables of one webhook server share.
pub(crate) struct Shared {
    pub(crate) declarations: Declarations,
    pub(crate) managed: Option<Managed>,
    pub(crate) cluster: Cluster,
    pub(crate) server: Server,
    pub(crate) leaf: CurrentLeaf,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) check_interval: Duration,
    pub(crate) drain_delay: Duration,
    pub(crate) readiness: Mutex<Readiness>,
    /// Tells the handlers that the replica is draining.
    pub(crate) is_draining: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) enum Readiness {
    Waiting(String),
    Ready,
    /// The process shuts down since this moment.
    Draining(MonotonicTime),
}

impl Shared {
    /// Result of the readiness check.
    pub(crate) fn check(&self) -> Result<(), CheckError> {
        match &*self.readiness.lock() {
            Readiness::Waiting(reason) => Err(CheckError::public(reason.clone())),
            Readiness::Ready => Ok(()),
            Readiness::Draining(_) => Err(CheckError::public("shutting down")),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn secret_key(&self, managed: &Managed) -> ObjectKey {
        let default = || format!("{}-webhook-ca", self.declarations.name);
        let name = managed.secret.clone().unwrap_or_else(default);
        ObjectKey::new(&self.declarations.namespace, &name)
    }

    /// Reads the CA.
    pub(crate) async fn read_ca(
        &self,
        client: &Client,
        managed: &Managed,
    ) -> Result<(Option<Arc<Secret>>, Found), steersman_cluster::Error> {
        let secret = client.live().get::<Secret>(&self.secret_key(managed)).await?;
        let found = match secret.as_deref().map(CaState::parse) {
            None => Found::Absent,
            Some(Ok(state)) => Found::Valid(Box::new(state)),
            Some(Err(error)) => Found::Invalid(error_chain(&error)),
        };
        Ok((secret, found))
    }

    /// Renews the leaf if the CA or the time demands it.
    async fn renew(&self) -> Result<(), BoxError> {
        let Some(managed) = &self.managed else {
            return Ok(());
        };
        let (_, found) = self.read_ca(&self.cluster.client(), managed).await?;
        let state = match found {
            Found::Valid(state) => state,
            Found::Absent => return Err("the CA Secret does not exist yet; the leader creates it".into()),
            Found::Invalid(reason) => return Err(format!("the CA Secret is invalid: {reason}").into()),
        };
        let names = self.declarations.names();
        if self
            .leaf
            .renew(&state, &names, self.clock.wall(), managed.leaf_lifetime)?
        {
            tracing::info!(names = names.join(","), "signed serving certificate");
        }
        if let Some(signer) = &state.signer {
            self.metrics.expires("ca", signer.cert().not_after());
        }
        if let Some(leaf) = self.leaf.get() {
            self.metrics.expires("leaf", leaf.not_after);
        }
        Ok(())
    }

    /// Calls this replica with each bundle that is published.
    async fn call_itself(&self) -> Result<(), BoxError> {
        let live = self.declarations.read(&self.cluster.client()).await?;
        let missing = self.declarations.unregistered(&live);
        if !missing.is_empty() {
            return Err(format!("waiting for the registration of {}", missing.join(", ")).into());
        }
        let names = self.declarations.names();
        let name = names.first().map_or("localhost", |name| name.as_str());
        let mut called: Vec<Vec<u8>> = Vec::new();
        for (webhook, bundle) in self.declarations.registered(&live) {
            if called.contains(&bundle) {
                continue;
            }
            let call = self_call::call(self.address(), name, &bundle).await;
            call.map_err(|error| format!("self-call for {webhook} failed: {}", error_chain(&error)))?;
            called.push(bundle);
        }
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        matches!(&*self.readiness.lock(), Readiness::Waiting(_))
    }

    fn wait_for(&self, reason: &str) {
        let mut readiness = self.readiness.lock();
        if let Readiness::Waiting(known) = &mut *readiness {
            if known != reason {
                tracing::info!(reason, "webhooks are not ready");
            }
            reason.clone_into(known);
        }
    }

    /// Renews the leaf, and checks readiness until it is reached. Never completes.
    async fn keep(&self) {
        let mut last_error = String::new();
        loop {
            let renewed = self.renew().await.map_err(|error| error_chain(&*error));
            let error = renewed.as_ref().err().cloned().unwrap_or_default();
            // Until the replica is ready, the error is the reason why it is not.
            if error != last_error && !error.is_empty() && !self.is_waiting() {
                tracing::warn!(
                    error,
                    "failed to renew serving certificate; keeping the present one"
                );
            }
            last_error.clone_from(&error);
            if self.is_waiting() {
                let has_certificate = self.managed.is_none() || self.leaf.get().is_some();
                let called = match has_certificate {
                    true => self.call_itself().await.map_err(|error| error_chain(&*error)),
                    false => Err(error),
                };
                match called {
                    Ok(()) => self.become_ready(),
                    Err(reason) => self.wait_for(&reason),
                }
            }
            let interval = match self.is_waiting() {
                true => self.check_interval.min(NOT_READY_INTERVAL),
                false => self.check_interval,
            };
            self.clock.sleep_until(self.clock.now() + interval).await;
        }
    }

    fn become_ready(&self) {
        let mut readiness = self.readiness.lock();
        if let Readiness::Waiting(_) = *readiness {
            *readiness = Readiness::Ready;
            tracing::info!(address = %self.address(), "webhooks are ready");
        }
    }

    /// Makes the replica unready, and returns since when it is.
    fn drain(&self) -> MonotonicTime {
        self.is_draining.store(true, Ordering::Relaxed);
        let mut readiness = self.readiness.lock();
        match *readiness {
            Readiness::Draining(since) => since,
            _ => {
                let now = self.clock.now();
                *readiness = Readiness::Draining(now);
                now
            }
        }
    }
}

/// Serves from before caches sync until everything else has ended.
pub(crate) struct Serve {
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
}

impl Runnable for Serve {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::BeforeCaches
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let shared = &self.shared;
        *shared.readiness.lock() = Readiness::Waiting("starting".to_owned());
        shared.is_draining.store(false, Ordering::Relaxed);
        let server = shared.server.try_clone()?;
        cx.ready();
        let stop = async {
            let deadline = cx.stop().requested().await;
            let drained = shared.drain() + shared.drain_delay;
            shared.clock.sleep_until(drained.min(deadline)).await;
        };
        let serving = server.serve(stop);
        tokio::select! {
            biased;
            served = serving => Ok(served?),
            () = shared.keep() => Ok(()),
        }
    }
}

/// Makes the replica unready as soon as the manager shuts down.
pub(crate) struct Drain {
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
}

impl Runnable for Drain {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        cx.ready();
        cx.stop().requested().await;
        self.shared.drain();
        Ok(())
    }
}
