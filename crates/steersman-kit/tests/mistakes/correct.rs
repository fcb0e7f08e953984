// SPDX-License-Identifier: Apache-2.0
//! A correct operator. The tests in `mistakes.rs` change one thing in it.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Service},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman_core::Action;
use steersman_kit::{
    Cleaned, Cleanup, ConditionSet, Conditions, KindReconciler, NoCleanup, Optional, RunsCleanup, Status,
    Work, managed,
};
use steersman_runtime::BoxError;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "cache.example.com",
    version = "v1",
    kind = "Memcached",
    namespaced,
    status = "MemcachedStatus"
)]
struct MemcachedSpec {
    size: i32,
}

#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct MemcachedStatus {
    ready_replicas: i32,
    observed_generation: Option<i64>,
    conditions: Conditions<Cond>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
enum Cond {
    Available,
    Registered,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
enum Other {
    Shiny,
}

struct Memcacheds;

impl KindReconciler for Memcacheds {
    type Kind = Memcached;
    type Status = MemcachedStatus;
    type Children = (Deployment, Optional<Service>);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, memcached: &Memcached, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.child(Cond::Available, deployment(memcached)).await;
        Ok(Action::await_change())
    }
}

fn deployment(_: &Memcached) -> Deployment {
    Deployment::default()
}

fn main() {
    let _ = managed(Memcacheds);
}
