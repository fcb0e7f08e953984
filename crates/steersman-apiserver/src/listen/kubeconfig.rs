// SPDX-License-Identifier: Apache-2.0
//! Kubeconfig files for a listener.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Returns a kubeconfig with a bearer token.
pub(super) fn with_token(url: &str, ca: &str, token: &str) -> String {
    file(url, ca, &format!("token: {}", json!(token)))
}

/// Returns a kubeconfig with a client certificate.
pub(super) fn with_certificate(url: &str, ca: &str, certificate: &str, key: &str) -> String {
    let user = format!(
        "client-certificate-data: {}\n    client-key-data: {}",
        STANDARD.encode(certificate),
        STANDARD.encode(key)
    );
    file(url, ca, &user)
}

fn file(url: &str, ca: &str, user: &str) -> String {
    let (url, ca) = (Value::from(url), STANDARD.encode(ca));
    format!(
        "apiVersion: v1
kind: Config
current-context: steersman
clusters:
- name: steersman
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: steersman
  user:
    {user}
contexts:
- name: steersman
  context:
    cluster: steersman
    user: steersman
"
    )
}
