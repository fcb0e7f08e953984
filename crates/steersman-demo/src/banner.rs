// SPDX-License-Identifier: Apache-2.0
//! A kind that depends on another one: a `Banner` is shown above the page of the `Web` with the same name.
//!
//! Not every cluster has this kind: while its CRD is missing the controller is dormant, and the rest of the operator is
//! not affected. Creating or deleting a `Web` triggers the `Banner` of the same name.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{kit::StatusParts, prelude::*, runtime::Builder};

use super::{Ready, Web};

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
#[derive(Status, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BannerStatus {
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the banner.
    pub conditions: Conditions<BannerCondition>,
}

/// Conditions of the banner. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BannerCondition {
    /// The text is in its ConfigMap.
    Stored,
    /// The page of a `Web` shows it.
    Shown,
}

impl Ready for Banner {
    fn is_ready(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.conditions().is_ready(self.metadata.generation))
    }
}

/// Reconciles banners.
#[derive(Debug)]
pub struct BannerReconciler;

/// Returns the controller.
pub fn controller() -> Builder<Request, Banner> {
    Controller::of::<Banner>("banner")
        .references_with(kind::<Web>().optional(), |banner| [banner.name_any()])
        .when_installed()
        .warm()
}

impl KindReconciler for BannerReconciler {
    type Kind = Banner;
    type Status = BannerStatus;
    type Children = (ConfigMap,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, banner: &Banner, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.child(BannerCondition::Stored, text(banner)?).await;
        let web = work.context().client().get::<Web>(&banner.key()).await?;
        match web {
            Some(_) => work.set_true(BannerCondition::Shown),
            None => {
                let message = format!("there is no Web named {}", banner.name_any());
                work.set_false(BannerCondition::Shown, "NoWeb", message);
            }
        }
        Ok(Action::await_change())
    }
}

/// Returns the ConfigMap with the text, which the page reads.
fn text(banner: &Banner) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": format!("{}-banner", banner.name_any())},
        "data": {"banner.txt": banner.spec.text},
    }))
}
