// SPDX-License-Identifier: Apache-2.0
//! kubebuilder's getting-started tutorial: a `Memcached` has a Deployment of the size that it asks for.
//!
//! The [page of the manual](steersman::manual::tutorials) compares it with the original.

use k8s_openapi::api::apps::v1::Deployment;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{Program, prelude::*, runtime::Builder};

/// Desired state of a Memcached.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "cache.example.com",
    version = "v1alpha1",
    kind = "Memcached",
    namespaced,
    status = "MemcachedStatus"
)]
pub struct MemcachedSpec {
    /// Number of instances.
    #[schemars(range(min = 1, max = 3))]
    pub size: i32,
}

/// Observed state of a Memcached.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemcachedStatus {
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the Memcached.
    pub conditions: Conditions<MemcachedCondition>,
}

/// Conditions of a Memcached. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum MemcachedCondition {
    /// The Deployment runs at its size.
    Available,
}

/// Reconciles the Deployment of a Memcached.
#[derive(Debug)]
pub struct Memcacheds;

impl KindReconciler for Memcacheds {
    type Kind = Memcached;
    type Status = MemcachedStatus;
    type Children = (Deployment,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, memcached: &Memcached, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.child(MemcachedCondition::Available, deployment(memcached)?)
            .await;
        Ok(Action::await_change())
    }
}

fn deployment(memcached: &Memcached) -> Result<Deployment, serde_json::Error> {
    let labels =
        json!({"app.kubernetes.io/name": "memcached", "app.kubernetes.io/instance": memcached.metadata.name});
    serde_json::from_value(json!({
        "metadata": {"name": memcached.metadata.name},
        "spec": {
            "replicas": memcached.spec.size,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "memcached",
                        "image": "memcached:1.6.26-alpine3.19",
                        "imagePullPolicy": "IfNotPresent",
                        "securityContext": {
                            "runAsNonRoot": true,
                            "runAsUser": 1001,
                            "allowPrivilegeEscalation": false,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "ports": [{"containerPort": 11211, "name": "memcached"}],
                        "command": ["memcached", "--memory-limit=64", "-o", "modern", "-v"],
                    }],
                },
            },
        },
    }))
}

/// Returns the controller.
pub fn controller() -> Builder<Request, Memcached> {
    Controller::of::<Memcached>("memcached").when_installed()
}

/// Returns the program of the operator.
pub fn program() -> Program {
    steersman::program("memcached-operator")
        .crd::<Memcached>()
        .controller(controller(), managed(Memcacheds))
}
