// SPDX-License-Identifier: Apache-2.0
//! Tests share a server without seeing each other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::ListParams};
use steersman_testing::{Fixture, OwnServerOptions, ServerKind};

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.reason == "Forbidden")
}

#[steersman_testing::test]
async fn a_namespace_is_new_and_empty(fixture: Fixture) -> Result<(), kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(fixture.client(), fixture.namespace());
    assert_eq!(secrets.list(&ListParams::default()).await?.items.len(), 0);
    Ok(())
}

#[steersman_testing::test]
async fn permissions_are_granted_and_revoked_while_a_user_is_connected(
    fixture: Fixture,
) -> Result<(), kube::Error> {
    let user = fixture.user("alice").await;
    let maps: Api<ConfigMap> = Api::namespaced(user.client(), fixture.namespace());
    assert!(is_forbidden(
        &maps.list(&ListParams::default()).await.unwrap_err()
    ));

    let grant = user.grant("", &["configmaps"], &["list"]).await?;
    maps.list(&ListParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(user.client(), fixture.namespace());
    assert!(is_forbidden(
        &secrets.list(&ListParams::default()).await.unwrap_err()
    ));

    grant.revoke().await?;
    assert!(is_forbidden(
        &maps.list(&ListParams::default()).await.unwrap_err()
    ));
    Ok(())
}

#[steersman_testing::test]
async fn a_server_of_ones_own_is_of_the_same_kind_and_another_one(fixture: Fixture) {
    let own = fixture.own_server(OwnServerOptions::default()).await;
    assert_ne!(own.endpoint().url(), fixture.endpoint().url());
    assert_eq!(
        fixture.embedded_server().is_some(),
        fixture.server_kind() == ServerKind::Embedded
    );
    own.client().apiserver_version().await.unwrap();
    // The token of one server says nothing to another.
    let stranger = own.endpoint().client(fixture.admin()).unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(stranger);
    match namespaces.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 401),
        other => panic!("401, not {other:?}"),
    }
}
