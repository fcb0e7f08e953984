// SPDX-License-Identifier: Apache-2.0
//! An operator: for each `Web` there is a page in a ConfigMap and a Deployment that serves it.
//!
//! The reconciler looks at what there is and never at what happened. It applies its children as they should be on the
//! server's side, which changes nothing where nothing differs, and writes the status only if that says something new.
//! That a child changes or goes wakes the `Web` that owns it.

use std::sync::Arc;

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{CustomResource, Resource, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steersman_controller::{BoxError, Context, Controller, Host, HostError, ObjectReconciler, kind, objects};
use steersman_core::{Action, ObjectKey};

/// What somebody wants to have served.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "examples.steersman.dev",
    version = "v1",
    kind = "Web",
    namespaced,
    status = "WebStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct WebSpec {
    /// What the page says.
    pub page: String,
    /// How many serve it.
    #[serde(default = "one")]
    pub replicas: i32,
}

/// What has become of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebStatus {
    /// How many serve it by now.
    #[serde(default)]
    pub ready_replicas: i32,
    /// The generation of the wishes that this is about.
    #[serde(default)]
    pub observed_generation: i64,
}

fn one() -> i32 {
    1
}

/// Brings the children of a `Web` into being.
#[derive(Debug)]
pub struct WebReconciler;

/// Adds the controller.
///
/// # Errors
/// When the host does not take it in.
pub fn add(host: &impl Host) -> Result<Controller, HostError> {
    Controller::of::<Web>("web")
        .owns(kind::<ConfigMap>())
        .owns(kind::<Deployment>())
        .workers(4)
        .run_on(host, objects(WebReconciler))
}

impl ObjectReconciler<Web> for WebReconciler {
    type Error = BoxError;

    async fn reconcile(&self, web: Arc<Web>, cx: Context) -> Result<Action, BoxError> {
        let client = cx.client().field_owner("web-operator").force();
        client.apply(&page(&web)?).await?;
        let deployment: Deployment = client.apply(&deployment(&web)?).await?;

        let status = WebStatus {
            ready_replicas: deployment
                .status
                .and_then(|status| status.ready_replicas)
                .unwrap_or(0),
            observed_generation: web.metadata.generation.unwrap_or(0),
        };
        if web.status.as_ref() != Some(&status) {
            let patch = Patch::Merge(json!({ "status": status }));
            client.patch_status::<Web>(&key(&web), &patch).await?;
        }
        Ok(Action::await_change())
    }
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

/// The metadata of a child: it is named as its owner, and goes with it.
fn child(web: &Web) -> Value {
    let owner: Option<OwnerReference> = web.controller_owner_ref(&());
    json!({
        "name": web.metadata.name,
        "namespace": web.metadata.namespace,
        "ownerReferences": [owner],
    })
}

fn key(web: &Web) -> ObjectKey {
    let (namespace, name) = (&web.metadata.namespace, &web.metadata.name);
    ObjectKey::new(
        namespace.as_deref().unwrap_or_default(),
        name.as_deref().unwrap_or_default(),
    )
}
