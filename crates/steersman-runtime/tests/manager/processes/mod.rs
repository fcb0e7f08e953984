// SPDX-License-Identifier: Apache-2.0
//! Replicas as processes of their own: copies of the test that runs them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ClusterBuilder};
use steersman_runtime::{Controller, Election, Manager};
use steersman_testing::{Endpoint, FaultProxy, Fixture, Identity};
use tokio::sync::{mpsc, watch};

use super::elected::{LEASE, Sign};

/// Set in a copy: what it is to be.
const ROLE: &str = "STEERSMAN_TEST_REPLICA";

/// Prefix of the output of a child process, to distinguish it from the output of the test harness.
const SAYS: &str = "copy: ";

/// A lease that runs out soon.
pub const DURATION: Duration = Duration::from_secs(3);
pub const RENEW: Duration = Duration::from_secs(2);
pub const RETRY: Duration = Duration::from_millis(400);

/// A program that runs until it is killed, or until the test ends.
pub struct Program {
    pub name: String,
    /// The name by which the proxy knows it.
    pub user: String,
    child: Child,
    heard: watch::Receiver<Vec<String>>,
    /// A copy ends when this closes, also if the test was killed.
    _tie: Option<ChildStdin>,
}

impl Program {
    /// A copy of this test that is a replica of this name.
    pub fn replica(fixture: &Fixture, proxy: &FaultProxy, identity: &Identity, name: &str) -> Self {
        proxy.announce(identity);
        let role = json!({
            "endpoint": proxy.endpoint(), "identity": identity, "namespace": fixture.namespace(), "name": name,
        });
        Self::copy(&role, identity, name)
    }

    /// A copy of this test that does this.
    pub fn copy(role: &Value, identity: &Identity, name: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "replica", "--nocapture"])
            .env(ROLE, role.to_string());
        Self::start(command, identity, name)
    }

    pub fn start(mut command: Command, identity: &Identity, name: &str) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, heard) = watch::channel(Vec::new());
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned)) {
                said.send_modify(|said| said.push(line));
            }
        });
        Self {
            name: name.to_owned(),
            user: identity.name().to_owned(),
            _tie: child.stdin.take(),
            child,
            heard,
        }
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it has said something for the n-th time, counted from one.
    pub async fn says(&mut self, what: &str, times: usize) {
        let enough = |said: &Vec<String>| said.iter().filter(|line| *line == what).count() >= times;
        let heard = self.heard.wait_for(enough).await;
        assert!(heard.is_ok(), "{} ended without saying `{what}`", self.name);
    }

    /// Waits until it says something that begins so for the n-th time, counted from one, and gives the rest of it.
    pub async fn tells(&mut self, beginning: &str, times: usize) -> String {
        let find = |said: &Vec<String>| {
            let mut rests = said.iter().filter_map(|line| line.strip_prefix(beginning));
            rests.nth(times - 1).map(str::to_owned)
        };
        let heard = self.heard.wait_for(|said| find(said).is_some()).await;
        let said = heard.unwrap_or_else(|_| panic!("{} ended without saying `{beginning}`", self.name));
        find(&said).unwrap()
    }

    /// Waits until it ends by itself.
    pub async fn ended(mut self) -> Option<i32> {
        let child = tokio::task::spawn_blocking(move || self.child.wait().unwrap().code());
        child.await.unwrap()
    }
}

/// A failed test leaves none behind.
impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::print_stdout, reason = "the test reads it")]
pub fn say(text: &str) {
    println!("\n{SAYS}{text}");
}

/// Does what a copy of the test is to do, until the test ends. In the test itself it does nothing.
pub fn be(what: impl AsyncFnOnce(Value)) {
    let Ok(role) = env::var(ROLE) else { return };
    let role: Value = serde_json::from_str(&role).unwrap();
    thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(what(role));
}

/// The cluster of a copy.
pub fn cluster_of(role: &Value) -> ClusterBuilder {
    let endpoint: Endpoint = serde_json::from_value(role["endpoint"].clone()).unwrap();
    let identity: Identity = serde_json::from_value(role["identity"].clone()).unwrap();
    let here = Scope::all().namespace(role["namespace"].as_str().unwrap());
    Cluster::builder("default")
        .field_manager("test")
        .config(endpoint.config(&identity).unwrap())
        .cache(|cache| cache.defaults(here, InformerOptions::default()))
}

/// Work of a child process: it signs config maps while it leads.
pub fn be_a_replica() {
    be(async |role| {
        let text = |field: &str| role[field].as_str().unwrap().to_owned();
        let cluster = cluster_of(&role).build().await.unwrap();
        let election = Election::new(LEASE)
            .namespace(text("namespace"))
            .identity(text("name"))
            .lease_duration(DURATION)
            .renew_deadline(RENEW)
            .retry_period(RETRY);
        let manager = Manager::builder()
            .cluster(cluster)
            .leader_election(election)
            .build()
            .await
            .unwrap();
        Controller::of::<ConfigMap>("maps")
            .warm()
            .add_to(&manager, Sign(text("name")))
            .unwrap();
        let follow = async {
            let standings = manager.statuses();
            standings
                .when(|all| {
                    all.get("maps")
                        .is_some_and(steersman_runtime::RunnableStatus::is_ready)
                })
                .await;
            say("warm");
            loop {
                manager.elected().await;
                say("leading");
                manager.leadership_lost().await;
                say("deposed");
            }
        };
        tokio::select! {
            biased;
            ended = manager.run() => ended.unwrap(),
            () = follow => {}
        }
    });
}

/// All writes that the server accepted, in the order of its revisions: the holders of the lease, and the signatures.
pub struct Chronicle {
    leases: Api<Lease>,
    maps: Api<ConfigMap>,
    entries: mpsc::Receiver<(u64, Entry)>,
}

#[derive(Debug)]
enum Entry {
    Held(String),
    Signed { map: String, by: String },
}

impl Chronicle {
    /// Begins with what is there now.
    pub fn begin(fixture: &Fixture) -> Self {
        let (sender, entries) = mpsc::channel(100_000);
        let (client, namespace) = (fixture.client(), fixture.namespace().to_owned());
        let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        let holder = |lease: &Lease| {
            let spec = lease.spec.as_ref();
            Entry::Held(
                spec.and_then(|spec| spec.holder_identity.clone())
                    .unwrap_or_default(),
            )
        };
        let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
        let signer = |map: &ConfigMap| {
            let seen = map.data.as_ref().and_then(|data| data.get("seen"));
            Entry::Signed {
                map: map.name_any(),
                by: seen.cloned().unwrap_or_default(),
            }
        };
        for_each_revision(leases.clone(), sender.clone(), holder);
        for_each_revision(maps.clone(), sender, signer);
        Self {
            leases,
            maps,
            entries,
        }
    }

    /// Checks that no replica signed while another one held the lease. Gives the holders one after another. Only replicas may
    /// have written maps that are signed.
    pub async fn judge(mut self) -> Vec<String> {
        let mut entries = self.until_now().await;
        entries.sort_by_key(|(revision, _)| *revision);
        let (mut holder, mut holders) = (String::new(), Vec::new());
        for (revision, entry) in entries {
            match entry {
                Entry::Held(by) => {
                    if !by.is_empty() && holders.last() != Some(&by) {
                        holders.push(by.clone());
                    }
                    holder = by;
                }
                Entry::Signed { map, by } => assert!(
                    by.is_empty() || by == holder,
                    "revision {revision}: `{map}` is signed by {by}, and {holder:?} holds the lease"
                ),
            }
        }
        holders
    }

    /// Returns the history up to the current state of the server.
    async fn until_now(&mut self) -> Vec<(u64, Entry)> {
        let (mut lease, mut map) = (newest(&self.leases).await, newest(&self.maps).await);
        let mut entries = Vec::new();
        while lease.max(map) > 0 {
            let (revision, entry) = self.entries.recv().await.unwrap();
            let awaited = match &entry {
                Entry::Held(_) => &mut lease,
                Entry::Signed { .. } => &mut map,
            };
            if revision >= *awaited {
                *awaited = 0;
            }
            entries.push((revision, entry));
        }
        entries
    }
}

/// The revision of the object that was written last.
async fn newest<K>(objects: &Api<K>) -> u64
where
    K: steersman_cluster::Kind + Clone + std::fmt::Debug,
{
    let all = objects.list(&Default::default()).await.unwrap();
    let revisions = all
        .iter()
        .map(|object| object.resource_version().unwrap().parse().unwrap());
    revisions.max().unwrap_or(0)
}

/// Records each revision of the objects of a kind, for as long as the test lasts.
fn for_each_revision<K>(objects: Api<K>, sender: mpsc::Sender<(u64, Entry)>, entry: fn(&K) -> Entry)
where
    K: steersman_cluster::Kind + Clone + std::fmt::Debug,
{
    let watching = async move {
        let mut from = "0".to_owned();
        loop {
            let watch = objects.watch(&WatchParams::default(), &from).await.unwrap();
            let mut watch = watch.boxed();
            while let Some(Ok(event)) = watch.next().await {
                let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else {
                    continue;
                };
                from = object.resource_version().unwrap();
                let revision = from.parse().unwrap();
                if sender.send((revision, entry(&object))).await.is_err() {
                    return;
                }
            }
        }
    };
    // It ends with the runtime of the test, or with the one who listens.
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(watching);
    tasks.detach_all();
}
