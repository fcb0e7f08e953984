// SPDX-License-Identifier: Apache-2.0
//! A controller of somebody else's kind, which not every cluster has, in as many replicas as you like.
//!
//! For each `Certificate` of cert-manager there is a ConfigMap with its host names. Where cert-manager is not installed the
//! program runs all the same, and begins when it is (`when_installed`). Of several replicas one writes; the others have all
//! that it knows, too, and go on at once when it ends (`warm`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_core::Action;
use steersman_runtime::{AddError, BoxError, Context, Controller, Manager, ObjectReconciler};

/// As much of a certificate as this program wants to know.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "cert-manager.io", version = "v1", kind = "Certificate", namespaced)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// The hosts that it is for.
    #[serde(default)]
    pub dns_names: Vec<String>,
}

/// Writes down the hosts of a certificate.
#[derive(Debug)]
pub struct Hosts;

/// Adds the controller.
///
/// # Errors
/// When the manager does not take it in.
pub fn add(manager: &Manager) -> Result<Controller, AddError> {
    Controller::of::<Certificate>("certificates")
        .when_installed()
        .owns::<ConfigMap>()
        .warm()
        .add_to(manager, Hosts)
}

impl ObjectReconciler<Certificate> for Hosts {
    type Error = BoxError;

    async fn reconcile(&self, certificate: Arc<Certificate>, cx: Context) -> Result<Action, BoxError> {
        let metadata = &certificate.metadata;
        let hosts: ConfigMap = serde_json::from_value(json!({
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "ownerReferences": [certificate.controller_owner_ref(&())],
            },
            "data": {"hosts": certificate.spec.dns_names.join(" ")},
        }))?;
        cx.client()
            .field_manager("certificates")
            .force()
            .apply(&hosts)
            .await?;
        Ok(Action::await_change())
    }
}
