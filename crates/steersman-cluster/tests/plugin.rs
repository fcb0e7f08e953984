// SPDX-License-Identifier: Apache-2.0
//! Credentials that a program gives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Config;
use serde_json::{Value, json};
use steersman_cluster::{Cluster, ConnectError};
use steersman_testing::{FaultProxy, Fixture};
use support::{config_map, key, object};

/// Notes that it was run, and gives what is asked for, once `go` is there.
const PROGRAM: &str = r#"
echo run >> "$DIRECTORY/runs"
tries=0
while [ ! -e "$DIRECTORY/go" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || exit 1
    sleep 0.01
done
echo "$CREDENTIAL"
"#;

/// A configuration with a program that gives the credentials of an administrator.
fn config(fixture: &Fixture, proxy: &FaultProxy, directory: &Path, expires: Option<&str>) -> Config {
    let mut config = support::config(fixture, proxy);
    let status = json!({"token": fixture.admin().token(), "expirationTimestamp": expires});
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status,
    });
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let env: Value = json!([
        variable("DIRECTORY", directory.to_str().unwrap()),
        variable("CREDENTIAL", &credential.to_string()),
    ]);
    config.auth_info = object(json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", PROGRAM], "env": env,
    }}));
    config
}

fn runs(directory: &Path) -> usize {
    let runs = std::fs::read_to_string(directory.join("runs")).unwrap_or_default();
    runs.lines().count()
}

#[steersman_testing::test]
async fn a_program_that_gives_credentials_is_run_once_for_a_cluster(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Far from now, or not known.
    for expires in [Some("2999-01-01T00:00:00Z"), None] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let builder = support::builder(&fixture, &proxy);
        let builder = builder.config(config(&fixture, &proxy, directory, expires));
        let go = async { std::fs::write(directory.join("go"), "").unwrap() };
        // It is in nobody's way: somebody else gets to run before it ends.
        let (cluster, ()) = tokio::join!(biased; builder.build(), go);
        let (cluster, name) = (cluster.unwrap(), format!("by-plugin-{}", expires.is_some()));
        // Its requests, its cache and its mapper have credentials.
        let client = cluster.client();
        client.create(&config_map(&fixture, &name, "1")).await.unwrap();
        let found = client.get::<ConfigMap>(&key(&fixture, &name)).await.unwrap();
        assert!(found.is_some());
        let ask = steersman_cluster::ResourceQuery::of::<ConfigMap>();
        cluster.mapper().resolve(&ask).await.unwrap();
        assert_eq!(runs(directory), 1);

        let another = cluster.another("another").build().await.unwrap();
        assert!(
            another
                .live()
                .get::<ConfigMap>(&key(&fixture, &name))
                .await
                .unwrap()
                .is_some()
        );
        assert_eq!(runs(directory), 2);
    }
}

#[steersman_testing::test]
async fn a_program_that_fails_makes_no_cluster(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&fixture, &proxy, directory.path(), None);
    let exec = config.auth_info.exec.as_mut().unwrap();
    exec.args = Some(vec!["-c".to_owned(), "exit 3".to_owned()]);
    let mut missing = config.clone();
    missing.auth_info.exec.as_mut().unwrap().command = Some("not-there".to_owned());
    for (config, command) in [(config, "sh"), (missing, "not-there")] {
        let built = Cluster::builder("default").config(config).build().await;
        let error = built.unwrap_err();
        assert!(matches!(error, ConnectError::Plugin { .. }), "{error:?}");
        let said = format!("cluster default: exec plugin `{command}` returned no credentials; ");
        assert!(error.to_string().starts_with(&said), "{error}");
    }
}

#[steersman_testing::test]
async fn a_token_file_comes_before_a_program(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, fixture.admin().token()).unwrap();
    let mut config = config(&fixture, &proxy, directory.path(), None);
    config.auth_info.token_file = Some(file.to_str().unwrap().to_owned());
    let cluster = support::builder(&fixture, &proxy)
        .config(config)
        .build()
        .await
        .unwrap();
    let found = cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "none"))
        .await
        .unwrap();
    assert!(found.is_none());
    assert_eq!(runs(directory.path()), 0);
}
