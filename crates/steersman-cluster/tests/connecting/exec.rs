// SPDX-License-Identifier: Apache-2.0
//! Credentials of an exec plugin.

use std::{
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::support::{config_map, key, object};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Config;
use serde_json::{Value, json};
use steersman_cluster::{Cluster, ConnectError};
use steersman_core::{Clock, TestClock, error_chain};
use steersman_testing::{
    FaultProxy, Fixture, User, eventually,
    proxy::{Fault, Matching},
};

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
    let mut config = crate::support::config(fixture, proxy);
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
async fn runs_an_exec_plugin_once_for_a_cluster(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Far from now, or not known.
    for expires in [Some("2999-01-01T00:00:00Z"), None] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let builder = crate::support::builder(&fixture, &proxy);
        let builder = builder.config(config(&fixture, &proxy, directory, expires));
        let go = async { std::fs::write(directory.join("go"), "").unwrap() };
        // It does not block the thread: another task runs before it ends.
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
async fn a_failing_exec_plugin_is_an_error(fixture: Fixture) {
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
async fn a_token_file_overrides_an_exec_plugin(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, fixture.admin().token()).unwrap();
    let mut config = config(&fixture, &proxy, directory.path(), None);
    config.auth_info.token_file = Some(file.to_str().unwrap().to_owned());
    let cluster = crate::support::builder(&fixture, &proxy)
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

/// Gives the credentials in a file, which the test can change; fails without it. Waits while `hold` is there.
const BY_FILE: &str = r#"
echo run >> "$DIRECTORY/runs"
tries=0
while [ -e "$DIRECTORY/hold" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || exit 1
    sleep 0.01
done
cat "$DIRECTORY/credential"
"#;

struct ByFile(tempfile::TempDir);

impl ByFile {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn returns(&self, token: &str, expires: Option<SystemTime>) {
        let expires = expires.map(|time| jiff::Timestamp::try_from(time).unwrap().to_string());
        let status = json!({"token": token, "expirationTimestamp": expires});
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status,
        });
        std::fs::write(self.0.path().join("credential"), credential.to_string()).unwrap();
    }

    fn fails(&self) {
        std::fs::remove_file(self.0.path().join("credential")).unwrap();
    }

    fn runs(&self) -> usize {
        runs(self.0.path())
    }

    fn config(&self, fixture: &Fixture, proxy: &FaultProxy) -> Config {
        let mut config = config(fixture, proxy, self.0.path(), None);
        config.auth_info.exec.as_mut().unwrap().args = Some(vec!["-c".to_owned(), BY_FILE.to_owned()]);
        config
    }
}

async fn user(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> User {
    let user = fixture.user(name).await;
    let _ = user
        .grant("", &["configmaps"], &["get", "list", "watch", "create"])
        .await
        .unwrap();
    proxy.announce(user.identity());
    user
}

fn last_identity(proxy: &FaultProxy) -> Option<String> {
    proxy
        .exchanges()
        .last()
        .and_then(|exchange| exchange.identity.clone())
}

// C2
#[steersman_testing::test]
async fn an_exec_plugin_runs_again_before_its_token_expires(fixture: Fixture) {
    let (clock, proxy, plugin) = (TestClock::new(), fixture.proxy().await, ByFile::new());
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    plugin.returns(
        old.identity().token(),
        Some(clock.wall() + Duration::from_secs(600)),
    );
    let builder = crate::support::builder(&fixture, &proxy).config(plugin.config(&fixture, &proxy));
    let cluster = builder.clock(Arc::new(clock.clone())).build().await.unwrap();
    let live = cluster.live();
    let get = async || live.get::<ConfigMap>(&key(&fixture, "a")).await;
    clock.advance(Duration::from_secs(539));
    get().await.unwrap();
    assert_eq!(
        (plugin.runs(), last_identity(&proxy).as_deref()),
        (1, Some(old.identity().name()))
    );

    // One minute before, also if the plugin fails at first: the old token is still valid.
    plugin.fails();
    clock.advance(Duration::from_secs(2));
    get().await.unwrap();
    assert_eq!(
        (plugin.runs(), last_identity(&proxy).as_deref()),
        (2, Some(old.identity().name()))
    );
    plugin.returns(
        new.identity().token(),
        Some(clock.wall() + Duration::from_secs(600)),
    );
    clock.advance(Duration::from_secs(6));
    get().await.unwrap();
    assert_eq!(
        (plugin.runs(), last_identity(&proxy).as_deref()),
        (3, Some(new.identity().name()))
    );

    // A plugin that fails until the token has expired is named, and used again when it is repaired.
    plugin.fails();
    clock.advance(Duration::from_secs(601));
    let error = get().await.unwrap_err();
    assert!(!error.may_be_applied());
    let text = error_chain(&error);
    assert!(
        text.contains("no credentials: exec plugin `sh` failed (exit status: 1)"),
        "{text}"
    );
    let state = cluster.state().to_string();
    assert!(state.contains("exec plugin `sh` failed"), "{state}");
    plugin.returns(old.identity().token(), None);
    clock.advance(Duration::from_secs(6));
    get().await.unwrap();
    assert_eq!(last_identity(&proxy).as_deref(), Some(old.identity().name()));
    cluster.state_when(|state| state.is_ready()).await;
}

// C2
#[steersman_testing::test]
async fn an_exec_plugin_runs_again_when_its_token_is_rejected(fixture: Fixture) {
    let (proxy, plugin) = (fixture.proxy().await, ByFile::new());
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    plugin.returns(old.identity().token(), None);
    let builder = crate::support::builder(&fixture, &proxy).config(plugin.config(&fixture, &proxy));
    let cluster = builder.build().await.unwrap();
    // A watch that goes on.
    let client = cluster.client();
    client.create(&config_map(&fixture, "first", "1")).await.unwrap();
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "first"))
            .await
            .unwrap()
            .is_some()
    );
    let watches = || cluster.cache().informers()[0].stats().watches;
    let before = watches();
    plugin.returns(new.identity().token(), None);
    let _revoked = proxy.inject(
        Matching::any().identity(old.identity().name()),
        Fault::answer(401),
    );
    client.create(&config_map(&fixture, "second", "1")).await.unwrap();
    assert_eq!(
        (plugin.runs(), last_identity(&proxy).as_deref()),
        (2, Some(new.identity().name()))
    );
    eventually("the watch to report the object", async || {
        client.get::<ConfigMap>(&key(&fixture, "second")).await.unwrap()
    })
    .await;
    assert_eq!(watches(), before, "a rotation closes no watch");

    let _all = proxy.inject(Matching::method("GET"), Fault::answer(401));
    let error = cluster
        .live()
        .get::<ConfigMap>(&key(&fixture, "first"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().ends_with("check the exec plugin `sh`"),
        "{error}"
    );
    let state = cluster.state().to_string();
    assert!(state.contains("401 Unauthorized): exec plugin `sh`"), "{state}");
}

// C2
#[steersman_testing::test]
async fn a_rejected_request_waits_for_the_run_that_is_under_way(fixture: Fixture) {
    let (clock, proxy, plugin) = (TestClock::new(), fixture.proxy().await, ByFile::new());
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    plugin.returns(old.identity().token(), None);
    let builder = crate::support::builder(&fixture, &proxy).config(plugin.config(&fixture, &proxy));
    let cluster = builder.clock(Arc::new(clock.clone())).build().await.unwrap();
    let live = cluster.live();
    let get = async || live.get::<ConfigMap>(&key(&fixture, "a")).await;
    plugin.returns(new.identity().token(), None);
    let hold = plugin.0.path().join("hold");
    std::fs::write(&hold, "").unwrap();
    let revoked = proxy.inject(
        Matching::any().identity(old.identity().name()),
        Fault::answer(401),
    );
    let second = async {
        eventually("the plugin to run again", async || {
            (plugin.runs() == 2).then_some(())
        })
        .await;
        get().await
    };
    let release = async {
        revoked.hit_times(2).await;
        std::fs::remove_file(&hold).unwrap();
    };
    let (first, second, ()) = tokio::join!(get(), second, release);
    first.unwrap();
    second.unwrap();
    assert_eq!(plugin.runs(), 2);
}

// C2
#[steersman_testing::test]
async fn an_exec_plugin_that_hangs_is_killed_with_its_children(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // In the second case, the plugin has ended, and its child keeps the output open.
    for end in ["wait", "exit 0"] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&fixture, &proxy, directory.path(), None);
        let hang = format!(r#"sleep 1000 & echo $! > "$DIRECTORY/child"; {end}"#);
        config.auth_info.exec.as_mut().unwrap().args = Some(vec!["-c".to_owned(), hang]);
        let limit = Duration::from_secs(1);
        let built = Cluster::builder("default")
            .config(config)
            .request_timeout(limit)
            .build()
            .await;
        let text = error_chain(&built.unwrap_err());
        assert!(text.ends_with("exec plugin `sh` did not end within 1s"), "{text}");
        let child = std::fs::read_to_string(directory.path().join("child")).unwrap();
        eventually("the child to end", async || {
            let alive = std::process::Command::new("kill")
                .args(["-0", child.trim()])
                .stderr(Stdio::null())
                .status();
            (!alive.unwrap().success()).then_some(())
        })
        .await;
    }
}
