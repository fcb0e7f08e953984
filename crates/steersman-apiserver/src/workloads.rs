// SPDX-License-Identifier: Apache-2.0
//! Simulated workloads: the work of scheduler, kubelets and controller manager for Pods, without running containers.
//!
//! Deployments create ReplicaSets, and these create Pods. Pods get a node and become ready. StatefulSets create Pods in
//! order, DaemonSets cover all nodes, Jobs complete, and Services get EndpointSlices. Like garbage collection, this is
//! background work: it runs with the request that causes it, or by [`step`](crate::ApiServer::step).
//!
//! # Guarantees
//! 1. Nothing happens unless [`Builder::workloads`](crate::Builder::workloads) enables it.
//! 2. Writes equal those of the real controllers, including managers, generations, owners and conditions.
//! 3. Delays follow the server's clock. No timer runs for them: requests and waiting watches advance the work.
//! 4. A controller creates at most 100 objects in one second of that clock, however many are requested and however soon
//!    its Pods end. It creates the rest in the following seconds, so that no request waits for endless work.
//!
//! # Controlling Pods
//! Annotations of a Pod, or of the template that it is created from:
//!
//! | annotation | meaning |
//! |---|---|
//! | `workloads.steersman.dev/startup` | seconds until it is ready, instead of [`Workloads::startup`] |
//! | `workloads.steersman.dev/outcome` | `run` (ready for ever), `succeed`, `fail` (it ends), `crash` (never ready), `pending` (gets no node) |
//!
//! By default the Pods of Jobs succeed and all others run. If the restart policy is `Always`, as in every Pod of a set,
//! `succeed` and `fail` act as `crash`: containers that end are restarted.
//!
//! # Not promised
//! The hash in names of ReplicaSets, CronJobs, volumes, and any order between Pods of one set beyond that of its kind.

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

/// Maximum number of objects that a controller creates in one second.
const BURST: usize = 100;

/// Options of simulated workloads.
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
    /// Sets the initial number of nodes. Default: 1; clients can add and remove nodes.
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Sets the time until a Pod is ready. Default: zero.
    pub fn startup(mut self, time: Duration) -> Self {
        self.startup = time;
        self
    }
}

/// The state of the simulation.
#[derive(Debug, Default)]
pub(crate) struct World {
    options: Option<Workloads>,
    /// Objects to process again, with their times.
    due: BTreeSet<(SystemTime, StorageId, Arc<str>)>,
    /// Counter of addresses and of the round-robin choice of nodes.
    count: usize,
    /// The current second, and the number of objects that each controller created in it.
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

    /// Returns the time of the next scheduled work.
    pub(crate) fn next_due(&self) -> Option<SystemTime> {
        self.due.first().map(|(at, ..)| *at)
    }

    fn next(&mut self) -> usize {
        self.count += 1;
        self.count
    }
}

/// Creates the initial nodes.
pub(crate) fn furnish(cx: &mut Context<'_>) {
    // Owners count their Pods whenever one of these changes.
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

/// Queues the workloads that a write or removal affects.
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

/// Returns the objects of a kind as work.
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

/// Returns the storage and key of an object's controller.
fn owner_of(cx: &Context<'_>, object: &Object, namespace: &str) -> Option<(StorageId, Arc<str>)> {
    let owners = metadata_of(object).get("ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == json!(true))?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let resource = cx.state.registry.find_kind(group, text("kind"))?;
    Some((resource.storage, Arc::from(resource.key(namespace, text("name")))))
}

/// Returns true if the controller of an object is allowed to create it now; otherwise schedules the controller for the
/// next second.
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

/// Schedules an object after `after`; a time beyond the clock's range is ignored.
fn look_again(cx: &mut Context<'_>, after: Duration, storage: StorageId, key: Arc<str>) {
    if let Some(at) = cx.now.checked_add(after) {
        cx.state.world.due.insert((at, storage, key));
    }
}

/// Queues the work that is due.
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

/// Processes one object as its controller would.
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
