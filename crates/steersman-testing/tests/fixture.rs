// SPDX-License-Identifier: Apache-2.0
//! Tests share a server without seeing each other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, api::ListParams};
use steersman_testing::{Fixture, OwnServerOptions, REQUIRE_REAL_VARIABLE, ServerKind, skip_without_tool};

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
async fn an_own_server_is_separate_and_of_the_same_type(fixture: Fixture) {
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

/// Runs a test of this file on the real server in a process that finds no binaries.
fn on_real_without_binaries(variables: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_namespace_is_new_and_empty::on_real"])
        .env("HOME", home.path())
        .env_remove("XDG_CACHE_HOME")
        .env_remove(steersman_testing::SHARED_SERVER_VARIABLE)
        .env_remove("KUBEBUILDER_ASSETS")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

// D25
#[test]
fn skips_the_real_server_with_a_visible_line_if_its_binaries_are_missing() {
    let output = on_real_without_binaries(&[("CI", "true")]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = "skipped tests on the real API server: no kube-apiserver is built in ";
    assert!(said.starts_with(expected), "{said}");
}

// D25
#[test]
fn fails_without_binaries_if_the_real_server_is_required() {
    for variable in [(REQUIRE_REAL_VARIABLE, "1"), ("KUBEBUILDER_ASSETS", "/nowhere")] {
        let output = on_real_without_binaries(&[variable]);
        assert!(!output.status.success(), "{variable:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(variable.0), "{said}");
    }
}

/// Skips in a separate process; see the next test.
#[test]
fn skips_without_a_tool() {
    if std::env::var_os("SKIPPING").is_some() {
        skip_without_tool("the kubectl session", "there is no kubectl");
    }
}

// D25
#[test]
fn a_missing_tool_fails_the_test_under_ci() {
    let run = |ci: Option<&str>| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "skips_without_a_tool"]);
        program.env("SKIPPING", "1").env_remove("CI");
        program.envs(ci.map(|value| ("CI", value))).output().unwrap()
    };
    let skipped = run(None);
    assert!(skipped.status.success(), "{skipped:?}");
    assert_eq!(
        skipped.stderr,
        b"skipped the kubectl session: there is no kubectl\n"
    );
    assert!(!run(Some("true")).status.success());
}
