// SPDX-License-Identifier: Apache-2.0
//! A CA that is lost, and certificates from files.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString, api::admissionregistration::v1::MutatingWebhookConfiguration, api::core::v1::Secret,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use steersman_testing::{Fixture, eventually};
use steersman_webhook::Certificates;

use super::support::*;

fn certificate(secret: &Secret) -> Option<&ByteString> {
    secret.data.as_ref()?.get("tls.crt")
}

// R69
#[steersman_testing::test]
async fn guarantee_2_a_deleted_or_invalid_ca_is_replaced_without_a_failed_call(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let replica = operator
        .replica(operator.webhooks().admission(operator.injects()))
        .await;
    operator.when_in_force().await;
    let (secrets, name) = (operator.secrets(), operator.secret_name());
    for is_deleted in [true, false] {
        let before = secrets.get(&name).await.unwrap();
        if is_deleted {
            secrets.delete(&name, &DeleteParams::default()).await.unwrap();
        } else {
            let garbage =
                Patch::Merge(json!({"data": {"tls.crt": STANDARD.encode("garbage"), "ca.crt": null}}));
            secrets
                .patch(&name, &PatchParams::default(), &garbage)
                .await
                .unwrap();
        }
        eventually("a new CA signs", async || {
            assert!(operator.is_injected().await.unwrap(), "no call fails meanwhile");
            let now = secrets.get_opt(&name).await.unwrap()?;
            let now = certificate(&now)?;
            (Some(now) != certificate(&before) && now.0 != b"garbage").then_some(())
        })
        .await;
    }
    for _ in 0..20 {
        assert!(operator.is_injected().await.unwrap());
    }
    operator.remove().await;
    replica.stop().await;
}

// R69
#[steersman_testing::test]
async fn files_are_served_and_their_bundle_belongs_to_others(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let generated = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&certificate, generated.cert.pem()).unwrap();
    std::fs::write(&key, generated.signing_key.serialize_pem()).unwrap();
    let webhooks = operator
        .webhooks()
        .certificates(Certificates::files(certificate, key));
    let replica = operator.starting(webhooks.admission(operator.injects())).await;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(operator.fixture.client());
    eventually("the configuration is created", async || {
        configurations.get_opt(&operator.name).await.unwrap()
    })
    .await;
    assert!(!replica.server.is_ready());
    // As cert-manager does it.
    let bundle = STANDARD.encode(generated.cert.pem());
    let injected = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "webhooks": [{"name": "inject.maps.example.com", "clientConfig": {"caBundle": bundle}}],
    });
    let injector = PatchParams::apply("cainjector");
    configurations
        .patch(&operator.name, &injector, &Patch::Apply(injected))
        .await
        .unwrap();
    eventually("the replica is ready", async || {
        replica.server.is_ready().then_some(())
    })
    .await;
    operator.service.add(&replica.server);
    operator.when_in_force().await;
    operator.remove().await;
    replica.stop().await;
}
