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
//!
//! # Telling Pods what to do
//! Annotations of a Pod, or of the template that it is made from:
//!
//! | annotation | meaning |
//! |---|---|
//! | `workloads.steersman.dev/startup` | seconds until it is ready, instead of [`Workloads::startup`] |
//! | `workloads.steersman.dev/outcome` | `run` (ready for ever), `succeed`, `fail` (it ends), `crash` (never ready), `pending` (gets no node) |
//!
//! The Pods of Jobs succeed unless told otherwise, all others run.
//!
//! # Not promised
//! The hash in names of ReplicaSets, CronJobs, volumes, and any order between Pods of one set beyond what its kind says.

mod actor;
mod daemon;
mod endpoints;
mod jobs;
mod pods;
mod replicas;
mod rollout;
mod stateful;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};

use crate::{
    background::{self, Work},
    resource::Resource,
    state::Context,
    store::{Object, StorageId, Stored, metadata_of},
};

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
    if let Some(owner) = owner_of(cx, &object) {
        background::push(cx, owner);
    }
    if resource.is("", "pods") {
        let namespace = stored.text("namespace");
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

/// The controller of an object, as work.
fn owner_of(cx: &Context<'_>, object: &Object) -> Option<Work> {
    let metadata = metadata_of(object);
    let owners = metadata.get("ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == json!(true))?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let resource = cx.state.registry.find_kind(group, text("kind"))?;
    let namespace = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    Some(Work::Workload(
        resource.storage,
        Arc::from(resource.key(namespace, text("name"))),
    ))
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
