// SPDX-License-Identifier: Apache-2.0
//! A program in a Pod, whose token is a file that changes.

use std::{path::Path, sync::Arc, time::Duration};

use crate::support::{config_map, key};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Config;
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{Cluster, ConnectError};
use steersman_core::TestClock;
use steersman_testing::{
    FaultProxy, Fixture, User,
    proxy::{Exchange, Fault, Matching},
};

/// A configuration as a Pod has it.
fn config(fixture: &Fixture, proxy: &FaultProxy, token_file: &Path) -> Config {
    let mut config = proxy.endpoint().config(fixture.admin()).unwrap();
    config.auth_info.token = None;
    config.auth_info.token_file = Some(token_file.to_str().unwrap().to_owned());
    config
}

async fn user(fixture: &Fixture, proxy: &FaultProxy, name: &str) -> User {
    let user = fixture.user(name).await;
    let verbs = ["get", "list", "watch", "create"];
    let _ = user.grant("", &["configmaps"], &verbs).await.unwrap();
    proxy.announce(user.identity());
    user
}

fn by(exchanges: &[Exchange], user: &User) -> usize {
    let name = user.identity().name();
    exchanges
        .iter()
        .filter(|one| one.identity.as_deref() == Some(name))
        .count()
}

// R96
#[steersman_testing::test]
async fn retries_with_a_replaced_token(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, old.identity().token()).unwrap();
    let here = Scope::all().namespace(fixture.namespace());
    let cluster = Cluster::builder("pod")
        .field_manager("tester")
        .config(config(&fixture, &proxy, &file))
        .clock(Arc::new(clock.clone()))
        .cache(|cache| cache.defaults(here, InformerOptions::default()))
        .build()
        .await
        .unwrap();
    let (client, live) = (cluster.client(), cluster.live());
    client.create(&config_map(&fixture, "a", "first")).await.unwrap();
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "a"))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(by(&proxy.exchanges(), &old), proxy.exchanges().len());

    // The old token ends before anybody looks at the file.
    std::fs::write(&file, format!("{}\n", new.identity().token())).unwrap();
    let _revoked = proxy.inject(
        Matching::any().identity(old.identity().name()),
        Fault::answer(401),
    );
    live.create(&config_map(&fixture, "b", "first")).await.unwrap();
    live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    let refused = proxy
        .exchanges()
        .iter()
        .filter(|one| one.status == Some(401))
        .count();
    assert_eq!(refused, 1, "only the server said so, and once");
    assert_eq!(by(&proxy.exchanges(), &new), 2);

    // A token that stays the same is not tried again and again.
    let _all = proxy.inject(Matching::method("GET"), Fault::answer(401));
    let error = live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap_err();
    assert_eq!(error.status().unwrap().code, 401);
    let refused = proxy
        .exchanges()
        .iter()
        .filter(|one| one.status == Some(401))
        .count();
    assert_eq!(refused, 2);
}

// R96, C3
#[steersman_testing::test]
async fn a_retry_with_a_replaced_token_needs_one_place_in_flight(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, old.identity().token()).unwrap();
    let cluster = Cluster::builder("pod")
        .field_manager("tester")
        .config(config(&fixture, &proxy, &file))
        .max_in_flight(1)
        .build()
        .await
        .unwrap();
    std::fs::write(&file, new.identity().token()).unwrap();
    let _revoked = proxy.inject(
        Matching::any().identity(old.identity().name()),
        Fault::answer(401),
    );
    let live = cluster.live();
    live.create(&config_map(&fixture, "a", "first")).await.unwrap();
    let exchanges = proxy.exchanges();
    assert_eq!((by(&exchanges, &old), by(&exchanges, &new)), (1, 1));
}

// R96
#[steersman_testing::test]
async fn a_new_token_is_used_within_a_minute(fixture: Fixture) {
    let (clock, proxy) = (TestClock::new(), fixture.proxy().await);
    let (old, new) = (
        user(&fixture, &proxy, "old").await,
        user(&fixture, &proxy, "new").await,
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, old.identity().token()).unwrap();
    let cluster = Cluster::builder("pod")
        .field_manager("tester")
        .config(config(&fixture, &proxy, &file))
        .clock(Arc::new(clock.clone()))
        .build()
        .await
        .unwrap();
    let live = cluster.live();
    live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    std::fs::write(&file, new.identity().token()).unwrap();
    clock.advance(Duration::from_secs(60));
    live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    let exchanges = proxy.exchanges();
    assert_eq!((by(&exchanges, &old), by(&exchanges, &new)), (1, 1));
    // Some take the file away once the program runs.
    std::fs::remove_file(&file).unwrap();
    clock.advance(Duration::from_secs(60));
    live.get::<ConfigMap>(&key(&fixture, "a")).await.unwrap();
    assert_eq!(by(&proxy.exchanges(), &new), 2);
}

#[tokio::test]
async fn an_invalid_token_file_is_an_error_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
    for (name, content) in [("missing", None), ("empty", Some("\n"))] {
        let file = directory.path().join(name);
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        config.auth_info.token_file = Some(file.to_str().unwrap().to_owned());
        let error = Cluster::new(config.clone()).unwrap_err();
        assert!(
            matches!(&error, ConnectError::Token { path, .. } if *path == file),
            "{error:?}"
        );
        assert!(error.to_string().ends_with(name), "{error}");
    }
}
