// SPDX-License-Identifier: Apache-2.0
//! Credentials of the auth provider `oidc`, which kube refreshes.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use steersman_cluster::Cluster;
use steersman_core::error_chain;
use steersman_testing::{FaultProxy, Fixture, Identity};

use crate::support::{key, object};

/// A token that expires at this time, in seconds since 1970.
fn token(expires: u64) -> String {
    let claims = URL_SAFE_NO_PAD.encode(json!({"exp": expires}).to_string());
    format!("e30.{claims}.c2ln")
}

async fn cluster(fixture: &Fixture, proxy: &FaultProxy, id_token: &str) -> Cluster {
    let mut config = crate::support::config(fixture, proxy);
    config.auth_info = object(json!({"auth-provider": {"name": "oidc", "config": {"id-token": id_token}}}));
    Cluster::builder("oidc").config(config).build().await.unwrap()
}

// C2
#[steersman_testing::test]
async fn sends_an_id_token_and_names_a_rejected_one(fixture: Fixture) {
    let (proxy, id_token) = (fixture.proxy().await, token(32_503_680_000));
    proxy.announce(&Identity::new("by-oidc", &id_token));
    let cluster = cluster(&fixture, &proxy, &id_token).await;
    let error = cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap_err();
    // The servers of tests have no such issuer.
    assert_eq!(error.status().unwrap().code, 401);
    assert!(
        error.to_string().ends_with("check the auth provider `oidc`"),
        "{error}"
    );
    let sent = proxy
        .exchanges()
        .into_iter()
        .filter_map(|exchange| exchange.identity);
    assert_eq!(sent.collect::<Vec<_>>(), ["by-oidc"]);
}

// C2
#[steersman_testing::test]
async fn does_not_send_an_expired_id_token(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy, &token(0)).await;
    let error = cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "a"))
        .await
        .unwrap_err();
    let text = error_chain(&error);
    assert!(
        text.contains("ID token expired and refreshing is not possible"),
        "{text}"
    );
    assert_eq!(proxy.exchanges().len(), 0);
}
