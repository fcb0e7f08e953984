// SPDX-License-Identifier: Apache-2.0
//! A mutating admission webhook for the ConfigMaps of one test.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ConfigMap};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use steersman_core::{Spawner, Task, TokioClock};
use steersman_endpoints::{
    HttpHandler, HttpRequest, HttpResponse, Routes, Server, Tls, read_body, text_response,
};
use steersman_testing::{Fixture, eventually};

use super::support::object;

/// The value that the webhook writes to `data.value` and `data.injected` of each ConfigMap with data.
pub(crate) const VALUE: &str = "by the webhook";

/// The webhook server, and its registration for the namespace of the test.
pub(crate) struct Webhook {
    configurations: Api<MutatingWebhookConfiguration>,
    name: String,
    _server: Task,
    _certificate: tempfile::TempDir,
}

impl Webhook {
    /// Starts and registers the webhook. It is in force when this returns.
    pub(crate) async fn install(fixture: &Fixture) -> Self {
        let (certificate, authority) = certificate();
        let tls = Tls::files(
            certificate.path().join("tls.crt"),
            certificate.path().join("tls.key"),
        );
        let mut routes = Routes::new();
        routes.add("/mutate", HttpHandler::new(mutate)).unwrap();
        let here = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(here, routes, Arc::new(TokioClock::new())).unwrap();
        let server = server.tls(tls.unwrap());
        let url = format!("https://{}/mutate", server.address());
        let serving = Spawner::current().spawn("webhook", async move {
            server.serve(std::future::pending()).await.unwrap();
        });
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(fixture.client());
        let configuration: MutatingWebhookConfiguration = object(json!({
            "metadata": {"name": fixture.namespace()},
            "webhooks": [{
                "name": "maps.kit.steersman.example",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"url": url, "caBundle": authority},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                    "operations": ["CREATE", "UPDATE"],
                }],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.namespace()}},
            }],
        }));
        let created = configurations
            .create(&PostParams::default(), &configuration)
            .await;
        created.unwrap();
        when_in_force(fixture).await;
        Self {
            configurations,
            name: fixture.namespace().to_owned(),
            _server: serving,
            _certificate: certificate,
        }
    }

    /// Removes the registration.
    pub(crate) async fn remove(self) {
        let removed = self
            .configurations
            .delete(&self.name, &DeleteParams::default())
            .await;
        removed.unwrap();
    }
}

/// Waits until the server calls the webhook.
async fn when_in_force(fixture: &Fixture) {
    let maps: Api<ConfigMap> = Api::namespaced(fixture.client(), fixture.namespace());
    let probe: ConfigMap = object(json!({"metadata": {"name": "probe"}, "data": {"a": "b"}}));
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the webhook is called", async || {
        let answer = maps.create(&dry_run, &probe).await.unwrap();
        answer.data.unwrap().contains_key("injected").then_some(())
    })
    .await;
}

/// A certificate and its key as files, and the certificate as a `caBundle`.
fn certificate() -> (tempfile::TempDir, String) {
    let generated = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (generated.cert.pem(), generated.signing_key.serialize_pem());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tls.crt"), &certificate).unwrap();
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    (folder, STANDARD.encode(certificate))
}

/// Answers an `AdmissionReview`: changes a value of a ConfigMap, and adds one.
async fn mutate(request: HttpRequest) -> HttpResponse {
    let body = read_body(request.into_body(), 1 << 20).await.unwrap();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if request["object"]["data"].is_object() {
        let set = |path: &str| json!({"op": "add", "path": path, "value": VALUE});
        let patch = json!([set("/data/value"), set("/data/injected")]);
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    let answer = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
    text_response(StatusCode::OK, answer.to_string())
}
