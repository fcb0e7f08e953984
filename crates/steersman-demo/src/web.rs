// SPDX-License-Identifier: Apache-2.0
//! A kind with children: each `Web` has a page in a ConfigMap and a Deployment that serves it.
//!
//! The reconciler states the children and the status of a `Web`. The kit creates the children, restores them after changes by
//! others, never touches an object of another owner, and writes the status if it differs. Changing or deleting a child triggers
//! the `Web` that owns it.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{kit::StatusParts, prelude::*, runtime::Builder};

use super::Ready;

/// Desired web site.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "examples.steersman.dev",
    version = "v1",
    kind = "Web",
    namespaced,
    status = "WebStatus",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Serving", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct WebSpec {
    /// Content of the page.
    pub page: String,
    /// Number of replicas that serve the page.
    #[serde(default = "one")]
    pub replicas: i32,
}

/// Observed state of the web site.
#[derive(Status, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebStatus {
    /// Number of ready replicas.
    pub ready_replicas: i32,
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the web site.
    pub conditions: Conditions<WebCondition>,
}

/// Conditions of the web site. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebCondition {
    /// The page is in its ConfigMap.
    Stored,
    /// All replicas serve the page.
    Serving,
}

fn one() -> i32 {
    1
}

impl Ready for Web {
    fn is_ready(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.conditions().is_ready(self.metadata.generation))
    }
}

/// Reconciles the children of a `Web`.
#[derive(Debug)]
pub struct WebReconciler;

/// Returns the controller.
pub fn controller() -> Builder<Request, Web> {
    Controller::of::<Web>("web")
        .when_installed() // a cluster without the CRD is nothing to complain about
        .on_every_cluster() // now and later
        .warm() // a replica that waits for its turn has seen everything already
        .workers(4)
}

impl KindReconciler for WebReconciler {
    type Kind = Web;
    type Status = WebStatus;
    type Children = (ConfigMap, Deployment);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, web: &Web, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.child(WebCondition::Stored, page(web)?).await;
        let deployment = work.child(WebCondition::Serving, deployment(web)?).await;
        let serving = deployment.and_then(|it| it.status.as_ref()?.ready_replicas);
        work.status_mut().ready_replicas = serving.unwrap_or(0);
        Ok(Action::await_change())
    }
}

fn page(web: &Web) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": web.metadata.name},
        "data": {"index.html": web.spec.page},
    }))
}

fn deployment(web: &Web) -> Result<Deployment, serde_json::Error> {
    let labels = json!({"app": web.metadata.name});
    serde_json::from_value(json!({
        "metadata": {"name": web.metadata.name},
        "spec": {
            "replicas": web.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{
                        "name": "nginx",
                        "image": "nginx",
                        "volumeMounts": [{"name": "page", "mountPath": "/usr/share/nginx/html"}],
                    }],
                    "volumes": [{"name": "page", "configMap": {"name": web.metadata.name}}],
                },
            },
        },
    }))
}
