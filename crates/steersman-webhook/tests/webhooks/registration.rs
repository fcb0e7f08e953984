// SPDX-License-Identifier: Apache-2.0
//! Registration objects that the leader keeps.

use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ConfigMap};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use steersman_testing::{Fixture, eventually};
use steersman_webhook::{AdmissionRequest, AdmissionResponse, AdmissionWebhook, Registration, Rule};

use super::support::*;

fn second(operator: &Operator) -> AdmissionWebhook {
    AdmissionWebhook::mutating("second.maps.example.com", async |_: AdmissionRequest<Value>| {
        Ok(AdmissionResponse::allow())
    })
    .rule(Rule::of::<ConfigMap>())
    .namespace_selector(operator.here())
}

async fn names(configurations: &Api<MutatingWebhookConfiguration>, name: &str) -> Vec<String> {
    let webhooks = configurations
        .get(name)
        .await
        .unwrap()
        .webhooks
        .unwrap_or_default();
    webhooks.into_iter().map(|webhook| webhook.name).collect()
}

// R69
#[steersman_testing::test]
async fn guarantee_4_removed_webhooks_disappear_and_foreign_fields_survive(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(operator.fixture.client());
    let both = operator
        .webhooks()
        .admission(operator.injects())
        .admission(second(&operator));
    let replica = operator.replica(both).await;
    assert_eq!(names(&configurations, &operator.name).await.len(), 2);
    // Another manager sets a label and a field; a third removes the bundle.
    let foreign = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"labels": {"team": "web"}},
        "webhooks": [{"name": "inject.maps.example.com", "reinvocationPolicy": "IfNeeded"}],
    });
    let other = PatchParams::apply("other").force();
    configurations
        .patch(&operator.name, &other, &Patch::Apply(foreign))
        .await
        .unwrap();
    let reverted = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let reverted: json_patch::Patch = object(reverted);
    let patch = Patch::Json::<()>(reverted);
    configurations
        .patch(&operator.name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("the bundle is restored", async || {
        let webhooks = configurations
            .get(&operator.name)
            .await
            .unwrap()
            .webhooks
            .unwrap();
        webhooks
            .iter()
            .all(|webhook| webhook.client_config.ca_bundle.is_some())
            .then_some(())
    })
    .await;
    replica.stop().await;

    // The next version of the operator does not declare the second webhook.
    let replica = operator
        .replica(operator.webhooks().admission(operator.injects()))
        .await;
    eventually("the second webhook is removed", async || {
        (names(&configurations, &operator.name).await == ["inject.maps.example.com"]).then_some(())
    })
    .await;
    let configuration = configurations.get(&operator.name).await.unwrap();
    assert_eq!(configuration.metadata.labels.unwrap()["team"], "web");
    let webhook = &configuration.webhooks.unwrap()[0];
    assert_eq!(webhook.reinvocation_policy.as_deref(), Some("IfNeeded"));
    let own = webhook
        .namespace_selector
        .as_ref()
        .unwrap()
        .match_expressions
        .as_ref()
        .unwrap();
    assert_eq!(
        (&*own[0].operator, own[0].values.as_ref().unwrap()),
        ("NotIn", &vec![operator.name.clone()])
    );
    operator.remove().await;
    replica.stop().await;
}

#[steersman_testing::test]
async fn guarantee_4_nothing_is_written_without_a_change(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(operator.fixture.client());
    let replica = operator
        .replica(operator.webhooks().admission(operator.injects()))
        .await;
    operator.when_in_force().await;
    let version = async || {
        let configuration = configurations
            .get(&operator.name)
            .await
            .unwrap()
            .metadata
            .resource_version;
        let secret = operator.secrets().get(&operator.secret_name()).await.unwrap();
        (configuration, secret.metadata.resource_version)
    };
    let before = version().await;
    // Observed for the time of 50 admissions and several checks of the leader.
    for _ in 0..50 {
        assert!(operator.is_injected().await.unwrap());
    }
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(version().await, before);
    operator.remove().await;
    replica.stop().await;
}

#[steersman_testing::test]
async fn the_bundle_is_injected_into_manifests_of_others(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(operator.fixture.client());
    let url = format!(
        "https://{}/mutate/inject.maps.example.com",
        operator.service.address
    );
    let manifest = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": operator.name},
        "webhooks": [{
            "name": "inject.maps.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": url}, "failurePolicy": "Ignore",
            "namespaceSelector": operator.here(),
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        }],
    });
    let gitops = PatchParams::apply("gitops");
    configurations
        .patch(&operator.name, &gitops, &Patch::Apply(&manifest))
        .await
        .unwrap();
    let webhooks = operator.webhooks().registration(Registration::CaBundle);
    let replica = operator.replica(webhooks.admission(operator.injects())).await;
    operator.when_in_force().await;
    // The tool applies its manifest again, without a conflict, and the bundle stays.
    let applied = configurations
        .patch(&operator.name, &gitops, &Patch::Apply(&manifest))
        .await
        .unwrap();
    let webhook = &applied.webhooks.unwrap()[0];
    assert!(webhook.client_config.ca_bundle.is_some());
    assert_eq!(webhook.failure_policy.as_deref(), Some("Ignore"));
    operator.remove().await;
    replica.stop().await;
}
