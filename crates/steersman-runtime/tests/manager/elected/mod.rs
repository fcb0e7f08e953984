// SPDX-License-Identifier: Apache-2.0
//! Replicas that contend: each a manager with a user, a cluster and connections of its own.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::Api;
use serde_json::json;
use steersman_cluster::Cluster;
use steersman_core::Action;
use steersman_endpoints::Exposition;
use steersman_runtime::{BoxError, Context, Election, Manager, ManagerBuilder, Reconciler, Request};
use steersman_testing::{FaultProxy, Fixture, Identity, proxy::Exchange};

use super::managed::{self, Running, cluster_builder, run};

/// The lease that replicas of one test contend for.
pub const LEASE: &str = "operator";

/// A lease that a busy machine can keep.
pub fn steady(fixture: &Fixture, identity: &str) -> Election {
    Election::new(LEASE)
        .namespace(fixture.namespace())
        .identity(identity)
        .lease_duration(Duration::from_secs(6))
        .renew_deadline(Duration::from_secs(4))
        .retry_period(Duration::from_millis(300))
}

/// A lease that runs out soon.
pub fn short(fixture: &Fixture, identity: &str) -> Election {
    steady(fixture, identity)
        .lease_duration(Duration::from_secs(2))
        .renew_deadline(Duration::from_millis(1400))
        .retry_period(Duration::from_millis(200))
}

/// A user who may do what a controller of config maps does, and hold a lease.
pub async fn user(fixture: &Fixture, name: &str) -> Identity {
    let user = fixture.user(name).await;
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];
    for (group, resource) in [
        ("", "configmaps"),
        ("", "secrets"),
        ("coordination.k8s.io", "leases"),
    ] {
        let _ = user.grant(group, &[resource], &verbs).await.unwrap();
    }
    user.identity().clone()
}

pub fn cluster_of(fixture: &Fixture, proxy: &FaultProxy, identity: &Identity) -> Cluster {
    proxy.announce(identity);
    let config = proxy.endpoint().config(identity).unwrap();
    let builder = cluster_builder(fixture, "default").config(config);
    // As by default: from the sync of the caches to the start of their users.
    let building = builder
        .cache(|cache| cache.linger(Duration::from_secs(5)))
        .build();
    futures::FutureExt::now_or_never(building).unwrap().unwrap()
}

/// A replica of a test: its manager, and the name by which the proxy knows it.
pub struct Replica {
    pub manager: Manager,
    pub cluster: Cluster,
    pub user: String,
}

impl Replica {
    /// A replica that is called `name` in the lease and at the proxy.
    pub async fn new(
        fixture: &Fixture,
        proxy: &FaultProxy,
        election: Election,
        name: &str,
        more: impl FnOnce(ManagerBuilder) -> ManagerBuilder,
    ) -> Self {
        let identity = user(fixture, name).await;
        let cluster = cluster_of(fixture, proxy, &identity);
        let builder = Manager::builder()
            .cluster(cluster.clone())
            .leader_election(election);
        Self {
            manager: more(builder).build().await.unwrap(),
            cluster,
            user: identity.name().to_owned(),
        }
    }

    pub fn run(&self) -> Running {
        run(&self.manager)
    }

    /// Its requests other than those about the lease.
    pub fn requests(&self, proxy: &FaultProxy) -> Vec<Exchange> {
        let all = proxy.exchanges().into_iter();
        all.filter(|one| one.identity.as_ref() == Some(&self.user) && !is_about_lease(one))
            .collect()
    }

    pub fn writes(&self, proxy: &FaultProxy) -> Vec<Exchange> {
        let all = self.requests(proxy).into_iter();
        all.filter(Exchange::is_write).collect()
    }

    pub fn watches(&self, proxy: &FaultProxy) -> Vec<Exchange> {
        let all = self.requests(proxy).into_iter();
        all.filter(Exchange::is_watch).collect()
    }
}

pub fn is_about_lease(exchange: &Exchange) -> bool {
    exchange.path.contains("/leases")
}

pub async fn lease(fixture: &Fixture) -> Lease {
    leases(fixture).get(LEASE).await.unwrap()
}

pub fn leases(fixture: &Fixture) -> Api<Lease> {
    Api::namespaced(fixture.client(), fixture.namespace())
}

pub async fn holder(fixture: &Fixture) -> String {
    let spec = lease(fixture).await.spec.unwrap();
    spec.holder_identity.unwrap_or_default()
}

/// Waits until the lease has this holder; the limit is that of the test.
pub async fn held_by(fixture: &Fixture, name: &str) {
    until(async || {
        let found = leases(fixture).get_opt(LEASE).await.unwrap();
        let spec = found.and_then(|lease| lease.spec);
        spec.is_some_and(|spec| spec.holder_identity.as_deref() == Some(name))
    })
    .await;
}

/// Returns the value of a series in the metrics of a manager.
pub fn figure(manager: &Manager, series: &str) -> Option<f64> {
    let text = manager.metrics().encode(Exposition::Text);
    let values = text.lines().filter_map(|line| line.strip_prefix(series));
    values.map(|value| value.trim().parse().unwrap()).next()
}

/// Polls until a condition holds.
pub async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Gives the lease to a holder that never renews.
pub async fn occupy(fixture: &Fixture, seconds: i32) {
    let lease = json!({
        "metadata": {"name": LEASE, "namespace": fixture.namespace()},
        "spec": {
            "holderIdentity": "nobody", "leaseDurationSeconds": seconds, "leaseTransitions": 4,
            "acquireTime": "2030-01-01T00:00:00.000000Z", "renewTime": "2030-01-01T00:00:00.000000Z",
        },
    });
    let lease = serde_json::from_value(lease).unwrap();
    leases(fixture).create(&Default::default(), &lease).await.unwrap();
}

/// Writes into each config map who has seen it last.
#[derive(Clone)]
pub struct Sign(pub String);

impl Reconciler for Sign {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        if let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? {
            let mut map = (*map).clone();
            let data = map.data.get_or_insert_default();
            if data.insert("seen".to_owned(), self.0.clone()).as_ref() != Some(&self.0) {
                cx.client().update(&map).await?;
            }
        }
        Ok(Action::await_change())
    }
}

/// Waits until a config map was signed.
pub async fn signed(fixture: &Fixture, name: &str, by: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), fixture.namespace());
    until(async || {
        let map = maps.get(name).await.unwrap();
        map.data
            .is_some_and(|data| data.get("seen").map(String::as_str) == Some(by))
    })
    .await;
}

pub async fn create_map(fixture: &Fixture, name: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), fixture.namespace());
    let map = managed::config_map(fixture, name, "1");
    maps.create(&Default::default(), &map).await.unwrap();
}
