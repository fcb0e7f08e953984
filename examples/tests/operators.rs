// SPDX-License-Identifier: Apache-2.0
//! The examples that work on one cluster do what they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::{Value, json};
use steersman_cluster::{Client, DeleteOptions};
use steersman_controller::{
    objects,
    testing::{Case, Stand},
};
use steersman_core::ObjectKey;
use steersman_examples::{
    handlers, tags,
    web::{self, Web, WebReconciler},
};
use steersman_manager::{Exposition, Manager};
use steersman_testing::{FaultProxy, Fixture};
use support::{cluster, eventually, run};

/// Installs the kind of the operator, and waits until it is served.
async fn install_webs(client: &Client) {
    let definition: CustomResourceDefinition = Web::crd();
    let client = client.field_owner("tests").force();
    let name = definition.name_any();
    client.apply(&definition).await.unwrap();
    eventually(async || {
        let found = client
            .get_required::<CustomResourceDefinition>(&ObjectKey::new("", &name))
            .await
            .unwrap();
        let conditions = found.status.as_ref().and_then(|status| status.conditions.clone());
        conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "True")
    })
    .await;
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn web(fixture: &Fixture, name: &str, page: &str) -> Web {
    object(json!({
        "apiVersion": "examples.steersman.dev/v1",
        "kind": "Web",
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "spec": {"page": page, "replicas": 2},
    }))
}

async fn manager(fixture: &Fixture, proxy: &FaultProxy) -> Manager {
    let cluster = cluster(proxy.endpoint(), fixture.admin(), "default", fixture.namespace());
    Manager::builder()
        .cluster(cluster.build().await.unwrap())
        .build()
        .await
        .unwrap()
}

async fn page(client: &Client, key: &ObjectKey) -> Option<String> {
    let map = client.get::<ConfigMap>(key).await.unwrap()?;
    map.data.as_ref()?.get("index.html").cloned()
}

// R44, R98, R99
#[steersman_testing::test]
async fn a_web_has_its_children_and_its_status(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    install_webs(&client).await;
    web::add(&manager).unwrap();
    let running = run(&manager);
    let key = ObjectKey::new(fixture.namespace(), "front");
    client.create(&web(&fixture, "front", "hello")).await.unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("hello")).await;
    eventually(async || client.get::<Deployment>(&key).await.unwrap().is_some()).await;
    let deployment = client.get_required::<Deployment>(&key).await.unwrap();
    assert_eq!(deployment.owner_references()[0].name, "front");
    assert_eq!(deployment.spec.replicas, Some(2));

    // What changes in the wishes changes in the children, and what goes of them comes back.
    let change = Patch::Merge(json!({"spec": {"page": "welcome"}}));
    client.patch::<Web>(&key, &change).await.unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("welcome")).await;
    client
        .delete::<ConfigMap>(&key, DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("welcome")).await;

    // The state of a child is in the status.
    let ready = Patch::Merge(json!({"status": {"replicas": 2, "readyReplicas": 2}}));
    client.patch_status::<Deployment>(&key, &ready).await.unwrap();
    let status = async || {
        let web = client.get_required::<Web>(&key).await.unwrap();
        let status = web.status.clone().unwrap_or_default();
        (
            status.ready_replicas,
            Some(status.observed_generation) == web.metadata.generation,
        )
    };
    eventually(async || status().await == (2, true)).await;
    running.stop().await;
    let metrics = manager.metrics().encode(Exposition::Text);
    assert!(
        metrics.contains(r#"reconcile_hot_loop_total{controller="web"} 0"#),
        "{metrics}"
    );
}

#[steersman_testing::test]
async fn the_table_of_the_operator(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    install_webs(&manager.client().unwrap().live()).await;
    let stand = Stand::new(fixture.client()).await.unwrap();
    let namespace = fixture.namespace();
    let new = Case::new("a new web gets its children and its status")
        .given(&web(&fixture, "new", "hello"))
        .writes([
            format!("apply configmaps {namespace}/new"),
            format!("apply deployments.apps {namespace}/new"),
            format!("patch webs.examples.steersman.dev {namespace}/new status"),
        ]);
    let gone =
        Case::new("one that is gone is none of our business").request(ObjectKey::new(namespace, "gone"));
    let mut leaving = web(&fixture, "leaving", "goodbye");
    leaving.metadata.finalizers = Some(vec!["steersman.example/somebody-else".to_owned()]);
    for case in [new, gone] {
        case.check(&stand, &objects(WebReconciler)).await;
    }
    let client = stand.cluster().live();
    client.create(&leaving).await.unwrap();
    let key = ObjectKey::new(namespace, "leaving");
    client
        .delete::<Web>(&key, DeleteOptions::default())
        .await
        .unwrap();
    let leaving = Case::new("one that is leaving gets no children").request(key);
    leaving.check(&stand, &objects(WebReconciler)).await;
}

// R118, R145
#[steersman_testing::test]
async fn each_handler_does_its_own_thing(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    handlers::add(&manager).unwrap();
    let running = run(&manager);
    let map = |name: &str, ttl: &str| -> ConfigMap {
        object(json!({
            "metadata": {
                "name": name,
                "namespace": fixture.namespace(),
                "annotations": {handlers::TTL: ttl},
            },
            "data": {"a": "1", "b": "2"},
        }))
    };
    // One whose time is never over, one whose time is over at once, and one for which no time can be told.
    for (name, ttl) in [("stays", "86400"), ("goes", "0"), ("odd", "soon")] {
        client.create(&map(name, ttl)).await.unwrap();
    }
    let key = |name| ObjectKey::new(fixture.namespace(), name);
    for name in ["stays", "odd"] {
        eventually(async || {
            let map = client.get_required::<ConfigMap>(&key(name)).await.unwrap();
            map.labels().get(handlers::SIZE).map(String::as_str) == Some("2")
        })
        .await;
    }
    eventually(async || client.get::<ConfigMap>(&key("goes")).await.unwrap().is_none()).await;
    running.stop().await;
}

// R58
#[steersman_testing::test]
async fn any_kind_can_be_tagged(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    let cluster = manager.cluster().unwrap();
    assert!(tags::find(&cluster, "", "Widget").await.is_err());
    let maps = tags::find(&cluster, "", "ConfigMap").await.unwrap();
    tags::add(&manager, &maps, "front").unwrap();
    let running = run(&manager);
    let map = |name: &str, labels: Value| -> ConfigMap {
        object(json!({"metadata": {"name": name, "namespace": fixture.namespace(), "labels": labels}}))
    };
    client.create(&map("a", json!({}))).await.unwrap();
    client
        .create(&map("b", json!({tags::LABEL: "back"})))
        .await
        .unwrap();
    let team = async |name: &str| {
        let key = ObjectKey::new(fixture.namespace(), name);
        let map = client.get_required::<ConfigMap>(&key).await.unwrap();
        map.labels().get(tags::LABEL).cloned()
    };
    eventually(async || team("a").await.as_deref() == Some("front")).await;
    assert_eq!(team("b").await.as_deref(), Some("back"));
    running.stop().await;
    // A kind outside of namespaces is found as well.
    let namespaces = tags::find(&cluster, "", "Namespace").await.unwrap();
    assert_eq!(namespaces, steersman_cache::Resource::of::<Namespace>());
}
