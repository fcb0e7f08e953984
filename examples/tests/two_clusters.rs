// SPDX-License-Identifier: Apache-2.0
//! The mirror of Secrets: one controller, two clusters.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use serde_json::json;
use steersman::cluster::{Client, Cluster, DeleteOptions};
use steersman::core::ObjectKey;
use steersman::runtime::{Manager, RunnableStatus};
use steersman_examples::mirror;
use steersman_testing::{
    FaultProxy, Fixture, OwnServer, OwnServerOptions,
    proxy::{Fault, Matching},
};
use support::{cluster, eventually, run};

/// Two clusters on two servers, and what one sees who looks at them directly.
struct Pair {
    reference: Client,
    mirror: Client,
    manager: Manager,
    proxy: FaultProxy,
    server: OwnServer,
}

impl Pair {
    /// The reference is the server of the test, the mirror a server of its own, behind a proxy.
    async fn new(fixture: &Fixture) -> Self {
        Self::with_own(Own::Mirror, fixture).await
    }

    /// One of the two is a server of its own, behind a proxy.
    async fn with_own(own: Own, fixture: &Fixture) -> Self {
        let server = fixture.own_server(OwnServerOptions::default()).await;
        let proxy = FaultProxy::start(server.endpoint()).await.unwrap();
        let shared = (fixture.endpoint(), fixture.admin());
        let away = (proxy.endpoint(), server.admin());
        let (near, far) = match own {
            Own::Reference => (away, shared),
            Own::Mirror => (shared, away),
        };
        let build = async |(endpoint, admin), name| {
            let builder = cluster(endpoint, admin, name, fixture.namespace());
            builder.build().await.unwrap()
        };
        let (near, far) = (build(near, "reference").await, build(far, "mirror").await);
        let direct = look_at(&server);
        let home = json!({"metadata": {"name": fixture.namespace()}});
        let home: Namespace = serde_json::from_value(home).unwrap();
        direct.create(&home).await.unwrap();
        let manager = Manager::builder().cluster(near.clone()).build().await.unwrap();
        manager.add(far.clone()).unwrap();
        mirror::add(&manager, &far).unwrap();
        let (reference, mirror) = match own {
            Own::Reference => (direct, far.live()),
            Own::Mirror => (near.live(), direct),
        };
        Self {
            reference,
            mirror,
            manager,
            proxy,
            server,
        }
    }

    /// Waits until the mirroring is said to miss a server, and then for as long as one is to be away. Without the default
    /// cluster it is degraded, without the other one partially degraded.
    async fn misses_one(&self, state: &str) {
        let text = format!("{state}: secrets/v1: unreachable");
        let is_named = |is: &str| is.starts_with(&text);
        let standings = self.manager.statuses();
        let missing = standings.when(|all| {
            let is = all.get("secret-mirror").map(ToString::to_string);
            is.is_some_and(|is| is_named(&is))
        });
        missing.await;
        let seconds = std::env::var("STEERSMAN_AWAY_SECONDS").ok();
        if let Some(seconds) = seconds.and_then(|seconds| seconds.parse().ok()) {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    }

    async fn is_ready(&self) {
        let standings = self.manager.statuses();
        let is_ready = |is: &RunnableStatus| matches!(is, RunnableStatus::Ready);
        standings.when(|all| is_ready(&all["secret-mirror"])).await;
    }

    /// Waits until it is in the mirror.
    async fn mirrors(&self, key: &ObjectKey) {
        eventually(async || self.is_mirrored(key).await).await;
    }

    async fn is_mirrored(&self, key: &ObjectKey) -> bool {
        self.mirror.get::<Secret>(key).await.unwrap().is_some()
    }
}

/// Which of the two has a server of its own, which can be stopped.
enum Own {
    Reference,
    Mirror,
}

/// One who asks a server directly.
fn look_at(server: &OwnServer) -> Client {
    let config = server.endpoint().config(server.admin()).unwrap();
    Cluster::new(config).unwrap().live().field_manager("test")
}

fn secret(fixture: &Fixture, name: &str, value: &str) -> Secret {
    let secret = json!({
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "stringData": {"value": value},
    });
    serde_json::from_value(secret).unwrap()
}

fn key(fixture: &Fixture, name: &str) -> ObjectKey {
    ObjectKey::new(fixture.namespace(), name)
}

async fn delete(client: &Client, key: &ObjectKey) {
    client
        .delete::<Secret>(key, DeleteOptions::default())
        .await
        .unwrap();
}

fn value(secret: &Secret) -> &[u8] {
    &secret.data.as_ref().unwrap()["value"].0
}

// R41, R47, R72, R73, R74, R75
#[steersman_testing::test]
async fn secrets_of_the_reference_are_in_the_mirror(fixture: Fixture) {
    let pair = Pair::new(&fixture).await;
    let (early, late) = (key(&fixture, "early"), key(&fixture, "late"));
    pair.reference
        .create(&secret(&fixture, "early", "1"))
        .await
        .unwrap();
    let running = run(&pair.manager);
    pair.mirrors(&early).await;
    pair.reference
        .create(&secret(&fixture, "late", "1"))
        .await
        .unwrap();
    pair.mirrors(&late).await;

    // A deleted copy is created again; a changed copy is left alone.
    delete(&pair.mirror, &early).await;
    pair.mirrors(&early).await;
    pair.mirror
        .update(&secret(&fixture, "late", "other"))
        .await
        .unwrap();
    pair.reference
        .update(&secret(&fixture, "late", "2"))
        .await
        .unwrap();
    // Later events are seen later.
    pair.reference
        .create(&secret(&fixture, "last", "1"))
        .await
        .unwrap();
    pair.mirrors(&key(&fixture, "last")).await;
    let copy = pair.mirror.get_required::<Secret>(&late).await.unwrap();
    assert_eq!(value(&copy), b"other");

    // Objects deleted from the reference stay in the mirror.
    delete(&pair.reference, &late).await;
    pair.reference
        .create(&secret(&fixture, "marker", "1"))
        .await
        .unwrap();
    pair.mirrors(&key(&fixture, "marker")).await;
    assert!(pair.is_mirrored(&late).await);
    running.stop().await;
    let all = pair.proxy.exchanges();
    let exists = all.iter().filter(|one| one.status == Some(409)).count();
    assert_eq!(
        exists, 0,
        "the events of both clusters collapse, and the cache knows what was written"
    );
}

// R73
#[steersman_testing::test]
async fn a_mirror_that_cannot_be_read_is_not_written_to(fixture: Fixture) {
    let pair = Pair::new(&fixture).await;
    let a = key(&fixture, "a");
    pair.reference.create(&secret(&fixture, "a", "1")).await.unwrap();
    let broken = pair
        .proxy
        .inject(Matching::method("GET").path("/secrets"), Fault::answer(500));
    let running = run(&pair.manager);
    broken.hit_times(2).await;
    assert!(pair.proxy.exchanges().iter().all(|one| !one.is_write()));
    drop(broken);
    pair.mirrors(&a).await;

    // A write that fails is tried again.
    let refused = pair
        .proxy
        .inject(Matching::method("POST").first(3), Fault::answer(500));
    pair.reference.create(&secret(&fixture, "b", "1")).await.unwrap();
    pair.mirrors(&key(&fixture, "b")).await;
    assert_eq!(refused.hits(), 3);
    running.stop().await;
}

// R72
#[steersman_testing::test]
async fn a_mirror_that_is_away_for_a_while_is_caught_up_with(fixture: Fixture) {
    let mut pair = Pair::new(&fixture).await;
    let a = key(&fixture, "a");
    pair.reference.create(&secret(&fixture, "a", "1")).await.unwrap();
    let running = run(&pair.manager);
    pair.mirrors(&a).await;
    pair.server.stop();
    // The reference continues.
    for name in ["b", "c"] {
        pair.reference.create(&secret(&fixture, name, "1")).await.unwrap();
    }
    pair.misses_one("partially degraded").await;
    pair.server.restart().await.unwrap();
    pair.mirror = look_at(&pair.server);
    for name in ["a", "b", "c"] {
        pair.mirrors(&key(&fixture, name)).await;
    }
    pair.is_ready().await;
    running.stop().await;
}

// R72
#[steersman_testing::test]
async fn while_the_reference_is_away_copies_are_kept_and_then_what_is_new_follows(fixture: Fixture) {
    let mut pair = Pair::with_own(Own::Reference, &fixture).await;
    let a = key(&fixture, "a");
    pair.reference.create(&secret(&fixture, "a", "1")).await.unwrap();
    let running = run(&pair.manager);
    pair.mirrors(&a).await;
    pair.server.stop();
    pair.misses_one("degraded").await;
    // The objects of the reference are cached, so that a deleted copy is created again.
    delete(&pair.mirror, &a).await;
    pair.mirrors(&a).await;
    pair.server.restart().await.unwrap();
    pair.reference = look_at(&pair.server);
    pair.reference.create(&secret(&fixture, "b", "1")).await.unwrap();
    pair.mirrors(&key(&fixture, "b")).await;
    pair.is_ready().await;
    running.stop().await;
}
