// SPDX-License-Identifier: Apache-2.0
//! A controller for a third-party kind that might not be installed, with any number of replicas.
//!
//! For each `Certificate` of cert-manager it writes a ConfigMap with its host names. If cert-manager is not installed,
//! the program runs and starts the controller when it is installed (`when_installed`). One of several replicas writes.
//! The others keep their caches and queues filled, and take over at once when it ends (`warm`).

use std::sync::Arc;

use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{k8s_openapi::api::core::v1::ConfigMap, prelude::*, runtime::AddError};

/// The fields of a certificate that this program uses.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "cert-manager.io", version = "v1", kind = "Certificate", namespaced)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSpec {
    /// Host names of the certificate.
    #[serde(default)]
    pub dns_names: Vec<String>,
}

/// Writes the host names of a certificate.
#[derive(Debug)]
pub struct Hosts;

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
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
        cx.client().force().apply(&hosts).await?;
        Ok(Action::await_change())
    }
}
