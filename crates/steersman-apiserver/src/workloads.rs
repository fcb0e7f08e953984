// SPDX-License-Identifier: Apache-2.0
//! Workloads that pretend to run: what scheduler, kubelets and the controller manager do for Pods, without running any.
//!
//! Deployments make ReplicaSets, these make Pods, Pods get a node and become ready; StatefulSets go in order, DaemonSets
//! cover all nodes, Jobs complete, Services get EndpointSlices. It is background work as garbage collection is: done
//! with the request that calls for it, or by [`step`](crate::ApiServer::step).
//!
//! # Guarantees
//! 1. Nothing happens unless [`Builder::workloads`](crate::Builder::workloads) asks for it.
//! 2. Writes are those of the real controllers: managers, generations, owners and conditions included.
//! 3. What takes time takes it by the server's clock. No timer runs for it: requests and watches that wait move it on.
//! 4. A controller makes at most 100 objects in one second of that clock, whatever it is asked for and however soon its
//!    Pods end; what is left is made in the next seconds. So no request is kept waiting by work without an end.
//!
//! # Telling Pods what to do
//! Annotations of a Pod, or of the template that it is made from:
//!
//! | annotation | meaning |
//! |---|---|
//! | `workloads.steersman.dev/startup` | seconds until it is ready, instead of [`Workloads::startup`] |
//! | `workloads.steersman.dev/outcome` | `run` (ready for ever), `succeed`, `fail` (it ends), `crash` (never ready), `pending` (gets no node) |
//!
//! The Pods of Jobs succeed unless told otherwise, all others run. Where the restart policy is `Always`, as in every Pod
//! of a set, `succeed` and `fail` are as `crash`: containers that end are started again.
//!
//! # Not promised
//! The hash in names of ReplicaSets, CronJobs, volumes, and any order between Pods of one set beyond what its kind says.

mod actor;
mod daemon;
mod endpoints;
mod jobs;
mod pods;
mod progress;
mod replicas;
mod rollout;
mod stateful;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::json;

use crate::{
    background::{self, Work},
    resource::Resource,
    state::Context,
    store::{Object, StorageId, Stored, metadata_of},
};

/// As many objects as a controller makes in one second.
const BURST: usize = 100;

/// How workloads behave.
#[derive(Clone, Debug)]
#[must_use]
pub struct Workloads {
    nodes: usize,
    startup: Duration,
}

impl Default for Workloads {
    fn default() -> Self {
        Self {
            nodes: 1,
            startup: Duration::ZERO,
        }
    }
}

impl Workloads {
    /// How many nodes there are at first. The default is one; clients may add and remove others.
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// How long a Pod takes until it is ready. The default is no time.
    pub fn startup(mut self, time: Duration) -> Self {
        self.startup = time;
        self
    }
}

/// What the pretended world remembers.
#[derive(Debug, Default)]
pub(crate) struct World {
    options: Option<Workloads>,
    /// What has to be looked at again, and when.
    due: BTreeSet<(SystemTime, StorageId, Arc<str>)>,
    /// Counts what gets a number: addresses, turns of nodes.
    count: usize,
    /// The second that it is, and how many objects each controller has made in it.
    made: (u64, BTreeMap<(StorageId, Arc<str>), usize>),
}

impl World {
    pub(crate) fn new(options: Option<Workloads>) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.options.is_some()
    }

    /// When something has to be looked at again.
    pub(crate) fn next_due(&self) -> Option<SystemTime> {
        self.due.first().map(|(at, ..)| *at)
    }

    fn next(&mut self) -> usize {
        self.count += 1;
        self.count
    }
}

/// Makes the first nodes.
pub(crate) fn furnish(cx: &mut Context<'_>) {
    // Whoever owns Pods counts them whenever one of them changes.
    let pods = cx.state.registry.find("", "pods").map(|pods| pods.storage);
    if let Some(pods) = pods.filter(|_| cx.state.world.is_on()) {
        cx.state.store.keep_decoded(pods);
    }
    let count = cx.state.world.options.as_ref().map_or(0, |options| options.nodes);
    for number in 1..=count {
        let name = format!("node-{number}");
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
            "lastHeartbeatTime": cx.timestamp(), "lastTransitionTime": cx.timestamp(),
        });
        let room = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
        let node = json!({
            "metadata": {"labels": labels},
            "spec": {},
            "status": {
                "capacity": room, "allocatable": room, "conditions": [ready],
                "addresses": [{"type": "InternalIP", "address": format!("10.1.0.{number}")}, {"type": "Hostname", "address": name}],
                "nodeInfo": {"kubeletVersion": "v1.37.1", "operatingSystem": "linux", "architecture": "amd64", "osImage": "pretended",
                    "kernelVersion": "", "containerRuntimeVersion": "", "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": ""},
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            },
        });
        cx.plant("", "nodes", "", &name, node);
    }
}

/// Calls for a look at whatever a write or removal concerns.
pub(crate) fn note(cx: &mut Context<'_>, resource: &Arc<Resource>, key: &str, stored: &Stored) {
    if !cx.state.world.is_on() || resource.custom.is_some() {
        return;
    }
    let is_workload = matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        ("", "pods" | "services")
            | ("batch", "jobs")
            | (
                "apps",
                "deployments" | "replicasets" | "statefulsets" | "daemonsets"
            )
    );
    if resource.is("", "nodes") {
        let sets = keys(cx, "apps", "daemonsets", "");
        let pods = keys(cx, "", "pods", "");
        sets.into_iter()
            .chain(pods)
            .for_each(|work| background::push(cx, work));
        return;
    }
    if !is_workload {
        return;
    }
    background::push(cx, Work::Workload(resource.storage, Arc::from(key)));
    let object = stored.object();
    let namespace = stored.text("namespace");
    if let Some((storage, key)) = owner_of(cx, &object, &namespace) {
        background::push(cx, Work::Workload(storage, key));
    }
    if resource.is("", "pods") {
        for service in keys(cx, "", "services", &format!("{namespace}/")) {
            background::push(cx, service);
        }
    }
}

/// The objects of a kind, as work.
fn keys(cx: &Context<'_>, group: &str, plural: &str, prefix: &str) -> Vec<Work> {
    let Some(resource) = cx.state.registry.find(group, plural) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let revision = cx.state.store.revision();
    cx.state
        .store
        .visit(resource.storage, prefix, None, revision, |key, _| {
            found.push(Work::Workload(resource.storage, Arc::clone(key)));
        });
    found
}

/// Where the controller of an object is.
fn owner_of(cx: &Context<'_>, object: &Object, namespace: &str) -> Option<(StorageId, Arc<str>)> {
    let owners = metadata_of(object).get("ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == json!(true))?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let resource = cx.state.registry.find_kind(group, text("kind"))?;
    Some((resource.storage, Arc::from(resource.key(namespace, text("name")))))
}

/// True if the controller of an object may make it now; if not, it is looked at again when it may.
fn may_make(cx: &mut Context<'_>, object: &Object, namespace: &str) -> bool {
    let Some((storage, key)) = owner_of(cx, object, namespace) else {
        return true;
    };
    let since = cx.now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let world = &mut cx.state.world;
    if world.made.0 != since.as_secs() {
        world.made = (since.as_secs(), BTreeMap::new());
    }
    let made = world.made.1.entry((storage, Arc::clone(&key))).or_default();
    if *made < BURST {
        *made += 1;
        return true;
    }
    let rest_of_second =
        Duration::from_secs(1).saturating_sub(Duration::from_nanos(since.subsec_nanos().into()));
    look_again(cx, rest_of_second, storage, key);
    false
}

/// Calls for a look at an object once `after` has passed; a time that never comes calls for none.
fn look_again(cx: &mut Context<'_>, after: Duration, storage: StorageId, key: Arc<str>) {
    if let Some(at) = cx.now.checked_add(after) {
        cx.state.world.due.insert((at, storage, key));
    }
}

/// Calls for a look at what is due.
pub(crate) fn wake(cx: &mut Context<'_>) {
    while let Some((at, ..)) = cx.state.world.due.first() {
        if *at > cx.now {
            return;
        }
        if let Some((_, storage, key)) = cx.state.world.due.pop_first() {
            background::push(cx, Work::Workload(storage, key));
        }
    }
}

/// Looks at one object and does what its controller would.
pub(crate) fn advance(cx: &mut Context<'_>, storage: StorageId, key: &str) {
    let resources = cx.state.registry.all();
    let Some(resource) = resources
        .iter()
        .find(|resource| resource.storage == storage)
        .cloned()
    else {
        return;
    };
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pods::advance(cx, key),
        ("", "services") => endpoints::advance(cx, key),
        ("apps", "deployments") => rollout::advance(cx, key),
        ("apps", "replicasets") => replicas::advance(cx, key),
        ("apps", "statefulsets") => stateful::advance(cx, key),
        ("apps", "daemonsets") => daemon::advance(cx, key),
        ("batch", "jobs") => jobs::advance(cx, key),
        _ => {}
    }
}
