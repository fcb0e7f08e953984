// SPDX-License-Identifier: Apache-2.0
//! A network in one process that loses, delays and holds what passes, and a ledger of what reached the server.

#![allow(unreachable_pub, reason = "the simulation uses it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use steersman_apiserver::{ApiServer, BodyError, Service};
use steersman_core::Random;
use tokio::sync::watch;

/// How long a lease lasts.
pub const LEASE: Duration = Duration::from_secs(6);

/// Writes that reached the server, by true time.
#[derive(Default)]
pub struct Ledger {
    pub now: Duration,
    /// Holder of the lease, and the time of its last renewal.
    pub holder: String,
    pub renewed: Duration,
    pub takeovers: u32,
    pub writes: u32,
    /// The holders of leases that were deleted, and since when each can reach the server.
    pub former: BTreeMap<String, Duration>,
    /// Violations.
    pub violations: Vec<String>,
}

/// The network card of one replica.
#[derive(Clone)]
pub struct Network {
    identity: Arc<str>,
    server: Service,
    ledger: Arc<Mutex<Ledger>>,
    random: Arc<Random>,
    frozen: watch::Receiver<bool>,
    faults: Faults,
}

/// Number of failed requests, of a thousand.
#[derive(Clone, Copy)]
pub struct Faults {
    /// The request or its answer is lost.
    pub losses: u64,
    /// The server refuses a write.
    pub refusals: u64,
}

/// The connection broke.
#[derive(Debug, thiserror::Error)]
#[error("lost on the way")]
pub struct Lost;

impl Network {
    pub fn new(
        identity: &str,
        server: &ApiServer,
        ledger: &Arc<Mutex<Ledger>>,
        (seed, faults): (u64, Faults),
        frozen: watch::Receiver<bool>,
    ) -> Self {
        Self {
            identity: identity.into(),
            server: server.service(),
            ledger: Arc::clone(ledger),
            random: Arc::new(Random::from_seed(seed)),
            frozen,
            faults,
        }
    }

    pub fn client(self) -> kube::Client {
        kube::Client::new(self, "default")
    }

    fn is_lost(&self) -> bool {
        self.strikes(self.faults.losses)
    }

    fn strikes(&self, of_thousand: u64) -> bool {
        self.random.next_u64() % 1000 < of_thousand
    }

    async fn passes(&self) {
        let _ = self.frozen.clone().wait_for(|frozen| !frozen).await;
    }

    async fn send(mut self, request: Request<Body>) -> Result<Response<Held>, Lost> {
        self.passes().await;
        if self.is_lost() {
            return Err(Lost);
        }
        let (parts, body) = request.into_parts();
        let mut bytes = body.collect().await.map_err(|_| Lost)?.to_bytes();
        let is_write = parts.method != http::Method::GET;
        let is_lease = parts.uri.path().contains("/leases");
        if is_write && self.strikes(self.faults.refusals) {
            // The server answers 400.
            bytes = Bytes::from_static(b"{");
        }
        if is_write && !is_lease {
            self.lock().write(&self.identity);
        }
        let request = Request::from_parts(parts, Body::from(bytes.to_vec()));
        let answered = tower::Service::call(&mut self.server, request).await;
        let response = answered.map_err(|_| Lost)?;
        if is_write && is_lease && response.status().is_success() {
            self.lock().hold(&bytes);
        }
        self.passes().await;
        if self.is_lost() {
            return Err(Lost);
        }
        let frozen = self.frozen.clone();
        Ok(response.map(|body| Held {
            body,
            frozen,
            waiting: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }
}

impl Ledger {
    /// Records a write of a replica that should lead.
    fn write(&mut self, identity: &str) {
        self.writes += 1;
        let (now, holder) = (self.now, &self.holder);
        if holder != identity && self.learns_of_its_loss(identity) {
            // Its last write and the event that reports the loss were in flight at the same time.
        } else if holder != identity {
            let violation = format!("{now:?}: {identity} writes, but the lease is held by `{holder}`");
            self.violations.push(violation);
        } else if now >= self.renewed + LEASE {
            self.violations
                .push(format!("{now:?}: {identity} writes after its lease has run out"));
        }
    }

    /// Returns true for the holder of a deleted lease, at the time at which it learns of the next holder.
    pub fn learns_of_its_loss(&self, identity: &str) -> bool {
        let reachable = self.former.get(identity);
        reachable.is_some_and(|reachable| self.now <= *reachable)
    }

    /// The lease was written.
    fn hold(&mut self, lease: &[u8]) {
        let lease: Value = serde_json::from_slice(lease).unwrap();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
        if holder != self.holder && !holder.is_empty() {
            self.takeovers += 1;
            if let Some(reachable) = self.former.get_mut(&self.holder) {
                *reachable = self.now.max(*reachable);
            }
        }
        (self.holder, self.renewed) = (holder, self.now);
    }
}

impl tower::Service<Request<Body>> for Network {
    type Response = Response<Held>;
    type Error = Lost;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Held>, Lost>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

/// An answer whose bytes do not pass while the network is frozen.
pub struct Held {
    body: steersman_apiserver::Body,
    frozen: watch::Receiver<bool>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if *this.frozen.borrow() {
            let mut frozen = this.frozen.clone();
            let waiting = this
                .waiting
                .get_or_insert_with(|| Box::pin(async move { _ = frozen.wait_for(|frozen| !frozen).await }));
            if waiting.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        this.waiting = None;
        Pin::new(&mut this.body).poll_frame(cx)
    }
}
