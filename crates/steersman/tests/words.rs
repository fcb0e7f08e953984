// SPDX-License-Identifier: Apache-2.0
//! What an operator's author has by the name of this crate alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use steersman::{
    Client,
    cache::Cache,
    cluster::{ClusterBuilder, Mapper},
    prelude::*,
    runtime::ManagerBuilder,
};
use steersman_testing::Fixture;
use tokio::sync::{oneshot, watch};

// R27
#[tokio::test]
async fn a_custom_condition_starts_and_stops_a_runnable() {
    let manager = Manager::builder().without_cluster().build().await.unwrap();
    let (runs, mut seen) = watch::channel(0_i32);
    let task = run_fn("task", move |cx: RunContext| {
        let runs = runs.clone();
        async move {
            runs.send_modify(|runs| *runs += 1);
            cx.stop().requested().await;
            runs.send_modify(|runs| *runs -= 1);
            Ok(())
        }
    });
    let flag = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&flag);
    let condition = RunCondition::poll("flag", Duration::from_millis(1), move || {
        let is_set = asked.load(Ordering::SeqCst);
        async move { Ok::<_, BoxError>(is_set) }
    });
    manager.add(Conditional::new(task, condition)).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let story = async {
        for _ in 0..3 {
            flag.store(true, Ordering::SeqCst);
            seen.wait_for(|runs| *runs == 1).await.unwrap();
            flag.store(false, Ordering::SeqCst);
            seen.wait_for(|runs| *runs == 0).await.unwrap();
        }
        drop(stop);
    };
    let (ended, ()) = tokio::join!(manager.run_until(async { _ = stopped.await }), story);
    ended.unwrap();
}

/// A component takes what it needs as arguments that the compiler checks.
struct Component {
    client: Client,
    live: Client,
    cache: Cache,
    kinds: Mapper,
    config: kube::Config,
}

impl Component {
    fn new(cluster: &Cluster) -> Self {
        Self {
            client: cluster.client(),
            live: cluster.live(),
            cache: cluster.cache().clone(),
            kinds: cluster.mapper().clone(),
            config: cluster.config().unwrap().clone(),
        }
    }
}

// R42, R50
#[steersman_testing::test]
async fn a_cluster_is_built_beside_a_manager_and_hands_out_its_parts_typed(fixture: Fixture) {
    use k8s_openapi::api::core::v1::ConfigMap;
    use steersman::cluster::ResourceQuery;

    let builder: ClusterBuilder = Cluster::builder("default");
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let cluster = builder.config(config.clone()).build().await.unwrap();
    let component = Component::new(&cluster);
    let manager: ManagerBuilder = Manager::builder();
    let manager = manager.cluster(cluster).build().await.unwrap();
    assert_eq!(manager.cluster().unwrap().name().to_string(), "default");
    let nothing = ObjectKey::new(fixture.namespace(), "nothing");
    for client in [&component.client, &component.live] {
        assert!(client.get::<ConfigMap>(&nothing).await.unwrap().is_none());
    }
    let found = component
        .kinds
        .resolve(&ResourceQuery::kind("", "ConfigMap"))
        .await
        .unwrap();
    assert_eq!(found.resource().plural(), "configmaps");
    assert_eq!(component.cache.informers().len(), 1, "the cached read has one");
    assert_eq!(component.config.cluster_url, config.cluster_url);
}
