// SPDX-License-Identifier: Apache-2.0
//! A kind with children: each `Web` has a page in a ConfigMap and a Deployment that serves it.
//!
//! The reconciler acts on the current state, never on events. It applies its children with server-side apply, which
//! changes nothing if nothing differs, and writes the status only if it has changed. Changing or deleting a child
//! triggers the `Web` that owns it.

use std::sync::Arc;

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman::{prelude::*, runtime::AddError};

use super::{
    OPERATOR,
    condition::{self, Condition, Ready},
};

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebStatus {
    /// Number of ready replicas.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Conditions of the web site.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn one() -> i32 {
    1
}

impl Ready for Web {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn is_ready(&self) -> bool {
        condition::is_ready(self.conditions(), self.metadata.generation)
    }
}

/// Reconciles the children of a `Web`.
#[derive(Debug)]
pub struct WebReconciler;

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager) -> Result<Controller, AddError> {
    Controller::of::<Web>("web")
        .owns::<ConfigMap>()
        .owns::<Deployment>()
        .when_installed() // a cluster without the CRD is nothing to complain about
        .on_every_cluster() // now and later
        .warm() // a replica that waits for its turn has seen everything already
        .workers(4)
        .add_to(manager, WebReconciler)
}

impl ObjectReconciler<Web> for WebReconciler {
    type Error = BoxError;

    async fn reconcile(&self, web: Arc<Web>, cx: Context) -> Result<Action, BoxError> {
        let client = cx.client().field_manager(OPERATOR).force();
        client.apply(&page(&web)?).await?;
        let deployment: Deployment = client.apply(&deployment(&web)?).await?;

        let status = status(&web, &deployment);
        if web.status.as_ref() != Some(&status) {
            client.apply_status(&with_status(&web, status)).await?;
        }
        Ok(Action::await_change())
    }
}

/// Returns the status of a `Web` with this Deployment.
fn status(web: &Web, deployment: &Deployment) -> WebStatus {
    let serving = deployment.status.as_ref();
    let serving = serving.and_then(|status| status.ready_replicas).unwrap_or(0);
    let wanted = web.spec.replicas;
    let is_ready = serving >= wanted;
    let reason = if is_ready { "Serving" } else { "Starting" };
    let message = format!("{serving} of {wanted} serve the page");
    let ready = Condition::ready(is_ready, web.metadata.generation, reason, message);
    WebStatus {
        ready_replicas: serving,
        observed_generation: web.metadata.generation.unwrap_or(0),
        conditions: vec![ready.since(web.conditions())],
    }
}

/// Returns the fields of a `Web` that an apply of its status needs.
fn with_status(web: &Web, status: WebStatus) -> Web {
    let mut applied = Web::new(&web.name_any(), web.spec.clone());
    applied.metadata.namespace = web.namespace();
    applied.status = Some(status);
    applied
}

fn page(web: &Web) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child(web),
        "data": {"index.html": web.spec.page},
    }))
}

fn deployment(web: &Web) -> Result<Deployment, serde_json::Error> {
    let labels = json!({"app": web.metadata.name});
    serde_json::from_value(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child(web),
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

/// Returns the metadata of a child: it has the name of its owner, and is deleted with it.
fn child(web: &Web) -> Value {
    let owner: Option<OwnerReference> = web.controller_owner_ref(&());
    json!({
        "name": web.metadata.name,
        "namespace": web.metadata.namespace,
        "ownerReferences": [owner],
    })
}
