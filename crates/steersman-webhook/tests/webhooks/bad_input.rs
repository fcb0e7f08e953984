// SPDX-License-Identifier: Apache-2.0
//! Calls that no API server would send, and user code that fails.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use steersman_testing::Fixture;
use steersman_webhook::{AdmissionRequest, AdmissionResponse, AdmissionWebhook, Rule};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::support::*;

/// Sends a body, and returns everything that the server sends until it closes the connection.
pub(crate) async fn send(
    operator: &Operator,
    replica: &Replica,
    path: &str,
    headers: &str,
    body: &[u8],
) -> String {
    let secret = operator.secrets().get(&operator.secret_name()).await.unwrap();
    let bundle = &secret.data.as_ref().unwrap()["ca.crt"].0;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(replica.server.address()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    // The server can end without the closing message of TLS.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

pub(crate) fn review(uid: &str) -> Vec<u8> {
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let request =
        json!({"uid": uid, "kind": kind, "resource": resource, "operation": "CREATE", "object": {}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    review.to_string().into_bytes()
}

// R69
#[steersman_testing::test]
async fn bad_input_gets_a_clear_answer_and_a_metric(fixture: Fixture) {
    let operator = Operator::new(fixture).await;
    let panics =
        AdmissionWebhook::validating("panics.maps.example.com", async |_: AdmissionRequest<Value>| {
            panic!("out of cheese")
        });
    let hangs = AdmissionWebhook::validating("hangs.maps.example.com", async |_: AdmissionRequest<Value>| {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok(AdmissionResponse::allow())
    });
    // For nothing on the server: the test calls them itself.
    let nowhere = || serde_json::from_value(json!({"matchLabels": {"no": "object"}})).unwrap();
    let mut webhooks = operator.webhooks().admission(operator.injects());
    for webhook in [panics, hangs] {
        webhooks = webhooks.admission(webhook.rule(Rule::of::<ConfigMap>()).object_selector(nowhere()));
    }
    let replica = operator.replica(webhooks).await;
    let json_type = "Connection: close\r\nContent-Type: application/json\r\n";
    let large = vec![b' '; 10_000_000];
    let paths = [
        "/mutate/inject.maps.example.com",
        "/validate/panics.maps.example.com",
        "/validate/hangs.maps.example.com?timeout=1s",
    ];
    for (path, headers, body, status, expected) in [
        (paths[0], json_type, review("u"), "200", "\"allowed\":true"),
        (
            paths[0],
            json_type,
            b"{".to_vec(),
            "400",
            "the body is not an AdmissionReview",
        ),
        (paths[0], json_type, review(""), "400", "`request.uid` is empty"),
        (
            paths[0],
            json_type,
            large,
            "413",
            "the request body exceeds 7340032 bytes",
        ),
        (
            paths[0],
            "Connection: close\r\n",
            review("u"),
            "415",
            "send `application/json`",
        ),
        (paths[1], json_type, review("u"), "500", "panicked: out of cheese"),
        (
            paths[2],
            json_type,
            review("u"),
            "504",
            "did not answer within 1s",
        ),
        ("/nowhere", json_type, review("u"), "404", "404 page not found"),
    ] {
        let answer = send(&operator, &replica, path, headers, &body).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
        assert!(answer.contains(expected), "{path}: {answer}");
    }
    for (path, code) in [
        (paths[0], 400),
        (paths[0], 413),
        (paths[1], 500),
        ("/validate/hangs.maps.example.com", 504),
    ] {
        let line = format!("controller_runtime_webhook_requests_total{{code=\"{code}\",webhook=\"{path}\"}}");
        assert!(replica.metric(&line), "{line}");
    }
    assert!(replica.metric("controller_runtime_webhook_panics_total 1"));
    // Everything still works.
    operator.when_in_force().await;
    operator.remove().await;
    replica.stop().await;
}
