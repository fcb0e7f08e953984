// SPDX-License-Identifier: Apache-2.0
//! A kind that depends on another one: a `Banner` is shown above the page of the `Web` with the same name.
//!
//! Not every cluster has this kind: while its CRD is missing the controller is dormant, and the rest of the operator is
//! not affected. Creating or deleting a `Web` triggers the `Banner` of the same name.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{prelude::*, runtime::AddError};

use super::{
    OPERATOR, Web,
    condition::{self, Condition, Ready},
};

/// Text to show above a page.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "examples.steersman.dev",
    version = "v1",
    kind = "Banner",
    namespaced,
    status = "BannerStatus",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    )
)]
pub struct BannerSpec {
    /// The text.
    pub text: String,
}

/// Observed state of the banner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct BannerStatus {
    /// Conditions of the banner.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl Ready for Banner {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn is_ready(&self) -> bool {
        condition::is_ready(self.conditions(), self.metadata.generation)
    }
}

/// Reconciles banners.
#[derive(Debug)]
pub struct BannerReconciler;

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager) -> Result<Controller, AddError> {
    Controller::of::<Banner>("banner")
        .owns::<ConfigMap>()
        .watches(kind::<Web>().optional(), map_metadata(|web| Some(web.key())))
        .when_installed()
        .warm()
        .add_to(manager, BannerReconciler)
}

impl ObjectReconciler<Banner> for BannerReconciler {
    type Error = BoxError;

    async fn reconcile(&self, banner: Arc<Banner>, cx: Context) -> Result<Action, BoxError> {
        let client = cx.client().field_manager(OPERATOR).force();
        client.apply(&text(&banner)?).await?;

        let name = banner.name_any();
        let key = ObjectKey::new(&banner.namespace().unwrap_or_default(), &name);
        let ready = match cx.client().get::<Web>(&key).await? {
            Some(_) => (true, "Shown", format!("the page of {name} has it")),
            None => (false, "NoWeb", format!("there is no Web named {name}")),
        };
        let ready = Condition::ready(ready.0, banner.metadata.generation, ready.1, ready.2);
        let status = BannerStatus {
            conditions: vec![ready.since(banner.conditions())],
        };
        if banner.status.as_ref() != Some(&status) {
            let mut applied = Banner::new(&name, banner.spec.clone());
            applied.metadata.namespace = banner.namespace();
            applied.status = Some(status);
            client.apply_status(&applied).await?;
        }
        Ok(Action::await_change())
    }
}

/// Returns the ConfigMap with the text, which the page reads.
fn text(banner: &Banner) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": format!("{}-banner", banner.name_any()),
            "namespace": banner.metadata.namespace,
            "ownerReferences": [banner.controller_owner_ref(&())],
        },
        "data": {"banner.txt": banner.spec.text},
    }))
}
