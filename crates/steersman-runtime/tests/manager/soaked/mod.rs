// SPDX-License-Identifier: Apache-2.0
//! The parts of the soak: replicas, users, faults, and the judge of what happened.

#![allow(unreachable_pub, reason = "the test file uses it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stderr, reason = "the report says which seed did what")]

mod chance;
mod faults;
mod footprint;
mod history;
mod operator;
mod users;

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt};
use steersman_core::ObjectKey;
use steersman_endpoints::Exposition;
use steersman_runtime::{Controller, Election, Manager};
use steersman_testing::{FaultProxy, Fixture, Grant, Identity, User, proxy::Exchange};

pub use self::{chance::Chance, footprint::Footprint};
use self::{
    faults::Faults,
    history::History,
    operator::{Book, Operator, owner_of, value_of, value_of_child},
    users::Users,
};
use super::{
    elected::cluster_of,
    managed::{Running, run},
};

/// A lease that a busy machine can keep.
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(300);

/// Time limit for convergence after everything is healed.
const CONVERGENCE: Duration = Duration::from_secs(30);

/// Time limit for connections and threads to close after a replica has ended.
const CLOSING: Duration = Duration::from_secs(20);

/// How long the steady state is looked at.
const QUIET: Duration = Duration::from_secs(2);

/// Both replicas, which come and go, with what stays: their users and proxies.
pub struct Stage {
    fixture: Fixture,
    replicas: [Replica; 2],
}

/// One replica of the operator; its process is replaced whenever it is killed.
struct Replica {
    name: &'static str,
    user: User,
    identity: Identity,
    proxy: FaultProxy,
    running: Option<(Running, Manager)>,
    /// Permissions that a fault revokes, by the path of their kind.
    grants: HashMap<&'static str, Grant>,
    /// How often it was started.
    incarnation: usize,
}

/// One seed.
struct Round<'a> {
    lease: String,
    fixture: &'a Fixture,
    book: Arc<Book>,
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Stage {
    pub async fn new(fixture: Fixture) -> Self {
        let replicas = [
            Replica::new(&fixture, "one").await,
            Replica::new(&fixture, "two").await,
        ];
        Self { fixture, replicas }
    }

    /// Plays one seed to its end.
    pub async fn play(&mut self, seed: u64, chance: &mut Chance, faulty: Duration) {
        let began = now();
        let round = Round {
            lease: format!("soak-{seed}"),
            fixture: &self.fixture,
            book: Arc::default(),
        };
        let history = History::begin(&self.fixture, &round.lease);
        let users = Users::new(&self.fixture);
        for replica in &mut self.replicas {
            replica.proxy.forget_ended();
            replica.start(&round).await;
        }
        let mut faults = Faults::default();
        while now() < began + faulty {
            match chance.below(100) {
                0..10 => faults.act(chance, &mut self.replicas).await,
                10 => users.delete_lease(&round.lease).await,
                _ => users.act(chance).await,
            }
            tokio::time::sleep(Duration::from_millis(chance.below(40))).await;
            faults.end_some(&mut self.replicas, &round).await;
        }
        faults.heal(&mut self.replicas, &round).await;
        let healed = now();
        self.settle(seed, &round, async || users.unfinished().await).await;
        let converged = now() - healed;
        self.is_quiet(seed).await;

        // The end of each object is a part of the story.
        users.delete_all().await;
        self.settle(seed, &round, async || users.left().await).await;
        for replica in &mut self.replicas {
            if let Some((running, _)) = replica.running.take() {
                running.stop().await.unwrap();
            }
            replica.has_closed(seed).await;
        }
        let history = history.end().await;
        let writes = history.judge_writers(seed);
        history.judge_finalizers(seed, &round.book);
        history.judge_absences(seed, &round.book);
        for replica in &self.replicas {
            judge_requests(seed, replica.name, &replica.proxy.exchanges());
        }
        users.delete_lease(&round.lease).await;
        eprintln!(
            "seed {seed}: converged after {converged:.1?}, {writes} writes, {} faults {:?}",
            faults.count(),
            faults.kinds()
        );
    }

    /// Waits until nothing is left to do.
    async fn settle(&self, seed: u64, round: &Round<'_>, mut left: impl AsyncFnMut() -> Vec<String>) {
        let mut last = Vec::new();
        let settling = async {
            loop {
                last = left().await;
                if last.is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(CONVERGENCE, settling).await.is_err() {
            let holder = Users::new(&self.fixture).holder(&round.lease).await;
            let mut replicas = Vec::new();
            for replica in &self.replicas {
                replicas.push(replica.describe());
                replicas.extend(replica.cached(&self.fixture, &last).await);
            }
            panic!(
                "seed {seed}: after {CONVERGENCE:?} this is left: {last:#?}\nthe lease is held by {holder:?}\n{}",
                replicas.join("\n")
            );
        }
    }

    /// Nothing is written in steady state.
    async fn is_quiet(&self, seed: u64) {
        let from = now();
        tokio::time::sleep(QUIET).await;
        for replica in &self.replicas {
            let exchanges = replica.proxy.exchanges();
            let late: Vec<_> = exchanges
                .iter()
                .filter(|one| is_object_write(one) && one.arrived > from)
                .map(|one| format!("{} {}", one.method, one.path))
                .collect();
            assert!(
                late.is_empty(),
                "seed {seed}: {} writes in steady state: {late:?}",
                replica.name
            );
        }
    }
}

impl Replica {
    async fn new(fixture: &Fixture, name: &'static str) -> Self {
        let user = fixture.user(name).await;
        let leases = user.grant("coordination.k8s.io", &["leases"], &["*"]);
        let _ = leases.await.unwrap();
        let maps = user.grant("", &["configmaps"], &["*"]).await.unwrap();
        let secrets = user.grant("", &["secrets"], &["*"]).await.unwrap();
        Self {
            name,
            identity: user.identity().clone(),
            user,
            proxy: fixture.proxy().await,
            running: None,
            grants: HashMap::from([("/configmaps", maps), ("/secrets", secrets)]),
            incarnation: 0,
        }
    }

    /// Starts the operator anew, with a cache and an identity of its own.
    async fn start(&mut self, round: &Round<'_>) {
        self.incarnation += 1;
        let identity = format!("{}-{}", self.name, self.incarnation);
        let election = Election::new(&round.lease)
            .namespace(round.fixture.namespace())
            .identity(&identity)
            .lease_duration(LEASE_DURATION)
            .renew_deadline(RENEW_DEADLINE)
            .retry_period(RETRY_PERIOD);
        let cluster = cluster_of(round.fixture, &self.proxy, &self.identity);
        let builder = Manager::builder().cluster(cluster).leader_election(election);
        let manager = builder.build().await.unwrap();
        Controller::of::<ConfigMap>("soak")
            .warm()
            .owns::<Secret>()
            .workers(4)
            .add_to(&manager, Operator::new(identity, Arc::clone(&round.book)))
            .unwrap();
        self.running = Some((run(&manager), manager));
    }
}

impl Replica {
    /// Every connection of its processes is closed, also of killed processes.
    async fn has_closed(&self, seed: u64) {
        let closed = tokio::time::timeout(CLOSING, self.proxy.has_connections(0)).await;
        let left = self.proxy.connections();
        assert!(
            closed.is_ok(),
            "seed {seed}: {} has left {left} connections open",
            self.name
        );
    }

    /// Objects in its cache, named by the first word of a text.
    async fn cached(&self, fixture: &Fixture, objects: &[String]) -> Vec<String> {
        let Some((_, manager)) = &self.running else {
            return Vec::new();
        };
        let (cached, live) = (manager.client().unwrap(), fixture.client());
        let live: Api<Secret> = Api::namespaced(live, fixture.namespace());
        let mut said = Vec::new();
        for name in objects.iter().filter_map(|text| text.split(' ').next()) {
            let key = ObjectKey::new(fixture.namespace(), name);
            let map = cached.get::<ConfigMap>(&key).await;
            let map = map.map(|map| map.map(|map| (map.resource_version(), value_of(&map))));
            let child = |child: &Secret| (child.resource_version(), value_of_child(child), owner_of(child));
            let secret = cached.get::<Secret>(&key).await;
            let secret = secret.map(|secret| secret.map(|secret| child(&secret)));
            let real = live.get_opt(name).await.unwrap().map(|secret| child(&secret));
            said.push(format!(
                "  cached: {name} {map:?}, its child {secret:?}; the server has {real:?}"
            ));
        }
        said
    }

    /// How it stands, what its queue holds, and its last requests other than renewals.
    fn describe(&self) -> String {
        let manager = self.running.as_ref().map(|(_, manager)| manager);
        let standings = manager.map(|manager| manager.statuses().all());
        let metrics = manager.map(|manager| manager.metrics().encode(Exposition::Text));
        let metrics = metrics.unwrap_or_default();
        let figures = metrics.lines().filter(|line| {
            let names = ["workqueue_", "controller_runtime_reconcile_", "controller_"];
            let is_named = names.iter().any(|name| line.starts_with(name));
            is_named && !line.contains("_bucket{") && !line.ends_with(" 0")
        });
        let exchanges = self.proxy.exchanges();
        let is_renewal = |one: &&Exchange| one.is_write() && one.path.contains("/leases");
        let requests = exchanges.iter().rev().filter(|one| !is_renewal(one)).take(20);
        let requests = requests.map(|one| {
            let (age, open) = (now() - one.arrived, one.is_open());
            format!(
                "{age:.1?} ago: {} {}?{} {:?} open={open}",
                one.method, one.path, one.query, one.status
            )
        });
        let lines: Vec<_> = figures.map(str::to_owned).chain(requests).collect();
        format!(
            "{}-{}: {standings:?}\n  {}",
            self.name,
            self.incarnation,
            lines.join("\n  ")
        )
    }
}

/// Returns true for a write of an object of the operator, not of its lease.
fn is_object_write(exchange: &Exchange) -> bool {
    let is_object = exchange.path.contains("/configmaps") || exchange.path.contains("/secrets");
    exchange.is_write() && is_object
}

/// Every write of a replica arrived within one lease duration after a renewal that the replica knew to be granted.
fn judge_requests(seed: u64, name: &str, exchanges: &[Exchange]) {
    let is_renewal = |one: &&Exchange| {
        one.is_write() && one.path.contains("/leases") && matches!(one.status, Some(200 | 201))
    };
    let renewals: Vec<_> = exchanges.iter().filter(is_renewal).collect();
    for write in exchanges.iter().filter(|one| is_object_write(one)) {
        let renewed = renewals.iter().rfind(|one| one.arrived <= write.arrived);
        let age = renewed.map(|one| write.arrived - one.arrived);
        assert!(
            age.is_some_and(|age| age < LEASE_DURATION),
            "seed {seed}: {name} sent {} {} {age:?} after its last renewal",
            write.method,
            write.path
        );
    }
}

/// Fails with all complaints at once.
fn assert_none<T: Debug>(seed: u64, what: &str, complaints: &[T]) {
    assert!(complaints.is_empty(), "seed {seed}: {what}: {complaints:#?}");
}
