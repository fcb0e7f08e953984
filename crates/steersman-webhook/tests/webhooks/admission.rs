// SPDX-License-Identifier: Apache-2.0
//! Defaults, rules and functions that an API server calls.

use kube::{
    Api, CustomResource, CustomResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_kit::{Defaults, Validate, ValidationReport};
use steersman_testing::{Fixture, eventually};
use steersman_webhook::AdmissionWebhook;

use super::support::*;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "admission.steersman.example",
    version = "v1",
    kind = "Site",
    namespaced
)]
struct SiteSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage: Option<String>,
}

impl Defaults for Site {
    fn set_defaults(&mut self) {
        self.spec.replicas.get_or_insert(1);
    }
}

impl Validate for Site {
    fn validate(&self, old: Option<&Self>, report: &mut ValidationReport) {
        if self.spec.replicas < Some(1) {
            report.invalid("spec.replicas", "must be at least 1");
        }
        if old.is_some_and(|old| old.spec.storage != self.spec.storage) {
            report.forbidden("spec.storage", "cannot be changed");
        }
    }

    fn validate_delete(&self, report: &mut ValidationReport) {
        if self.spec.replicas == Some(7) {
            report.forbidden("metadata.deletionTimestamp", "seven stays");
        }
    }
}

// R69
#[steersman_testing::test]
async fn defaults_and_rules_hold_on_the_server(fixture: Fixture) {
    let mut crd = Site::crd();
    // A newer version of the operator has added a field that this one does not know.
    let schema = crd.spec.versions[0]
        .schema
        .as_mut()
        .unwrap()
        .open_api_v3_schema
        .as_mut()
        .unwrap();
    let spec = schema.properties.as_mut().unwrap().get_mut("spec").unwrap();
    spec.properties
        .as_mut()
        .unwrap()
        .insert("future".to_owned(), object(json!({"type": "string"})));
    fixture.install(&crd).await;
    let operator = Operator::new(fixture).await;
    let here = operator.here();
    let webhooks = operator.webhooks();
    let webhooks = webhooks
        .admission(AdmissionWebhook::defaults::<Site>().namespace_selector(here.clone()))
        .admission(AdmissionWebhook::validates::<Site>().namespace_selector(here));
    let replica = operator.replica(webhooks).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "admission.steersman.example",
        "v1",
        "Site",
    ));
    let sites: Api<DynamicObject> =
        Api::namespaced_with(operator.fixture.client(), operator.fixture.namespace(), &resource);
    let site = |name: &str, spec: serde_json::Value| -> DynamicObject {
        object(
            json!({"apiVersion": "admission.steersman.example/v1", "kind": "Site", "metadata": {"name": name}, "spec": spec}),
        )
    };
    let create = PostParams::default();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("both webhooks are called", async || {
        let invalid = sites
            .create(&dry_run, &site("probe", json!({"replicas": 0})))
            .await
            .is_err();
        let probe = sites.create(&dry_run, &site("probe", json!({}))).await;
        (invalid && probe.ok()?.data["spec"]["replicas"] == 1).then_some(())
    })
    .await;

    let created = sites
        .create(&create, &site("a", json!({"future": "kept"})))
        .await
        .unwrap();
    assert_eq!(created.data["spec"], json!({"replicas": 1, "future": "kept"}));
    let denied = rejection(sites.create(&create, &site("b", json!({"replicas": 0}))).await);
    let name = "validate.sites.admission.steersman.example";
    let message = format!(
        "admission webhook \"{name}\" denied the request: Site.admission.steersman.example \"b\" is invalid: spec.replicas: Invalid value: must be at least 1"
    );
    assert_eq!(denied, (422, message));
    let storage = Patch::Merge(json!({"spec": {"storage": "fast"}}));
    let denied = rejection(sites.patch("a", &PatchParams::default(), &storage).await);
    assert!(
        denied.1.ends_with("spec.storage: Forbidden: cannot be changed"),
        "{denied:?}"
    );
    let seven = Patch::Merge(json!({"spec": {"replicas": 7}}));
    sites.patch("a", &PatchParams::default(), &seven).await.unwrap();
    let denied = rejection(sites.delete("a", &DeleteParams::default()).await);
    assert!(denied.1.ends_with("seven stays"), "{denied:?}");

    assert!(replica.metric("controller_runtime_webhook_requests_total{code=\"200\",webhook=\"/mutate-admission-steersman-example-v1-site\"}"));
    assert!(
        replica.metric("steersman_webhook_certificate_expiration_timestamp_seconds{certificate=\"leaf\"}")
    );
    operator.remove().await;
    replica.stop().await;
}

// R69
#[steersman_testing::test]
async fn guarantee_1_every_replica_serves(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let declare = || operator.webhooks().admission(operator.injects());
    let leader = operator.replica(declare()).await;
    operator.when_in_force().await;
    // The standby becomes ready, although it does not lead.
    let standby = operator.replica(declare()).await;
    let path = "/mutate/inject.maps.example.com";
    let served = format!("controller_runtime_webhook_requests_total{{code=\"200\",webhook=\"{path}\"}} ");
    leader.server.is_ready().then_some(()).unwrap();
    leader.stop().await;
    eventually("the standby serves", async || {
        let injected = operator.is_injected().await.unwrap_or_default();
        (injected && standby.metric(&served)).then_some(())
    })
    .await;
    operator.remove().await;
    standby.stop().await;
}
