// SPDX-License-Identifier: Apache-2.0
//! The operator of web sites does what it says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use steersman::cache::Resource;
use steersman::cluster::{Client, Cluster, ClusterName, DeleteOptions, ResourceQuery};
use steersman::core::{ObjectKey, Spawner};
use steersman::endpoints::Exposition;
use steersman::kit::{lint_status, managed};
use steersman::runtime::{
    KnownKind, Manager, RunnableStatus,
    testing::{Case, Stand},
};
use steersman_examples::site::{
    self, Banner, Ready, Web, banner::BannerReconciler, clusters, web::WebReconciler,
};
use steersman_testing::{FaultProxy, Fixture, OwnServerOptions};
use support::{cluster, eventually, run};

/// Installs a kind, and waits until it is served.
async fn install(client: &Client, definition: &CustomResourceDefinition) {
    let client = client.field_manager("tests").force();
    client.apply(definition).await.unwrap();
    let key = ObjectKey::new("", &definition.name_any());
    eventually(async || {
        let found = client
            .get_required::<CustomResourceDefinition>(&key)
            .await
            .unwrap();
        let conditions = found.status.as_ref().and_then(|status| status.conditions.clone());
        let mut conditions = conditions.unwrap_or_default().into_iter();
        conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
    })
    .await;
    // A moment after the definition says so, the server still knows nothing of the kind.
    let spec = &definition.spec;
    let kind = Resource::new(
        &spec.group,
        &spec.versions[0].name,
        &spec.names.kind,
        &spec.names.plural,
    );
    let nothing = ObjectKey::new("default", "nothing");
    eventually(async || client.of(&kind).get(&nothing).await.is_ok()).await;
}

async fn uninstall(client: &Client, definition: &CustomResourceDefinition) {
    let key = ObjectKey::new("", &definition.name_any());
    let deleted = client.delete::<CustomResourceDefinition>(&key, DeleteOptions::default());
    deleted.await.unwrap();
    eventually(async || {
        let found = client.get::<CustomResourceDefinition>(&key).await.unwrap();
        found.is_none()
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

fn banner(fixture: &Fixture, name: &str) -> Banner {
    object(json!({
        "apiVersion": "examples.steersman.dev/v1",
        "kind": "Banner",
        "metadata": {"name": name, "namespace": fixture.namespace()},
        "spec": {"text": "closed on Sundays"},
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

/// The summary of an object: status and reason.
async fn ready<K>(client: &Client, key: &ObjectKey) -> Option<(String, String)>
where
    K: KnownKind + serde::Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let object = client.get_required::<K>(key).await.unwrap();
    let object = serde_json::to_value(&*object).unwrap();
    assert_eq!(lint_status(&object), []);
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let text = |field: &str| ready[field].as_str().unwrap().to_owned();
    Some((text("status"), text("reason")))
}

fn summary(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

/// Sets the status that the controllers of Kubernetes set when all Pods of a Deployment serve.
async fn all_serve(client: &Client, key: &ObjectKey) {
    eventually(async || client.get::<Deployment>(key).await.unwrap().is_some()).await;
    let deployment = client.get_required::<Deployment>(key).await.unwrap();
    let condition = |name: &str, reason: &str| json!({"type": name, "status": "True", "reason": reason});
    let ready = Patch::Merge(json!({"status": {
        "observedGeneration": deployment.metadata.generation,
        "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "readyReplicas": 2,
        "conditions": [
            condition("Progressing", "NewReplicaSetAvailable"), condition("Available", "MinimumReplicasAvailable"),
        ],
    }}));
    client.patch_status::<Deployment>(key, &ready).await.unwrap();
}

// R44, R98, R99
#[steersman_testing::test]
async fn a_web_has_its_children_and_its_conditions(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    install(&client, &Web::crd()).await;
    site::add(&manager).unwrap();
    let running = run(&manager);
    let key = ObjectKey::new(fixture.namespace(), "front");
    client.create(&web(&fixture, "front", "hello")).await.unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("hello")).await;
    eventually(async || client.get::<Deployment>(&key).await.unwrap().is_some()).await;
    let deployment = client.get_required::<Deployment>(&key).await.unwrap();
    assert_eq!(deployment.owner_references()[0].name, "front");
    assert_eq!(deployment.spec.replicas, Some(2));
    let state = async || ready::<Web>(&client, &key).await;
    eventually(async || state().await == summary("Unknown", "LessReplicas")).await;

    // A change of the spec changes the children, and a deleted child is created again.
    let change = Patch::Merge(json!({"spec": {"page": "welcome"}}));
    client.patch::<Web>(&key, &change).await.unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("welcome")).await;
    client
        .delete::<ConfigMap>(&key, DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("welcome")).await;

    // The state of a child is in the status.
    all_serve(&client, &key).await;
    eventually(async || state().await == summary("True", "AllConditionsMet")).await;
    let web = client.get_required::<Web>(&key).await.unwrap();
    assert_eq!(web.status.as_ref().unwrap().ready_replicas, 2);
    running.stop().await;
    let metrics = manager.metrics().encode(Exposition::Text);
    assert!(
        metrics.contains(r#"reconcile_hot_loop_total{controller="web"} 0"#),
        "{metrics}"
    );
}

// R109
#[steersman_testing::test]
async fn a_web_never_touches_an_object_of_another_owner(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    install(&client, &Web::crd()).await;
    site::add(&manager).unwrap();
    let running = run(&manager);
    let key = ObjectKey::new(fixture.namespace(), "taken");
    let foreign: ConfigMap = object(json!({
        "metadata": {"name": "taken", "namespace": fixture.namespace()}, "data": {"index.html": "not yours"},
    }));
    let foreign = client.create(&foreign).await.unwrap();
    client.create(&web(&fixture, "taken", "hello")).await.unwrap();
    eventually(async || ready::<Web>(&client, &key).await == summary("False", "NotOwned")).await;
    // The other child is reconciled all the same.
    all_serve(&client, &key).await;
    let found = client.get_required::<ConfigMap>(&key).await.unwrap();
    assert_eq!(found.metadata.resource_version, foreign.metadata.resource_version);
    // The name is free, and the child takes it.
    let deleted = client.delete::<ConfigMap>(&key, DeleteOptions::default());
    deleted.await.unwrap();
    eventually(async || page(&client, &key).await.as_deref() == Some("hello")).await;
    eventually(async || ready::<Web>(&client, &key).await == summary("True", "AllConditionsMet")).await;
    running.stop().await;
}

#[steersman_testing::test]
async fn the_table_of_webs(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    install(&manager.client().unwrap().live(), &Web::crd()).await;
    let stand = Stand::new(fixture.client()).await.unwrap();
    let ask = ResourceQuery::of::<Web>();
    eventually(async || stand.cluster().mapper().resolve_anew(&ask).await.is_ok()).await;
    let namespace = fixture.namespace();
    let new = Case::new("a new web gets its children and its status")
        .given(&web(&fixture, "new", "hello"))
        .writes([
            format!("create configmaps {namespace}/new"),
            format!("patch configmaps {namespace}/new"),
            format!("create deployments.apps {namespace}/new"),
            format!("patch deployments.apps {namespace}/new"),
            format!("apply webs.examples.steersman.dev {namespace}/new status"),
        ]);
    let again = Case::new("nothing is written for one that has not changed")
        .request(ObjectKey::new(namespace, "new"));
    let gone =
        Case::new("one that is gone is none of our business").request(ObjectKey::new(namespace, "gone"));
    let reconciler = managed(WebReconciler);
    for case in [new, again, gone] {
        case.check(&stand, &reconciler).await;
    }
    let mut leaving = web(&fixture, "leaving", "goodbye");
    leaving.metadata.finalizers = Some(vec!["steersman.example/somebody-else".to_owned()]);
    let client = stand.cluster().live();
    client.create(&leaving).await.unwrap();
    let key = ObjectKey::new(namespace, "leaving");
    client
        .delete::<Web>(&key, DeleteOptions::default())
        .await
        .unwrap();
    let leaving = Case::new("one that is leaving gets no children").request(key);
    leaving.check(&stand, &reconciler).await;
}

/// All checks of banners are in one test, because their kind is installed and removed for the whole server.
// R38
#[steersman_testing::test]
async fn banners_are_hung_up_while_their_kind_is_installed(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    install(&client, &Web::crd()).await;
    site::add(&manager).unwrap();
    let running = run(&manager);
    let standings = manager.statuses().clone();
    let dormant = async || {
        let rests = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Dormant { .. });
        standings.when(|all| all.get("banner").is_some_and(rests)).await;
    };
    let (front, back) = (
        ObjectKey::new(fixture.namespace(), "front"),
        ObjectKey::new(fixture.namespace(), "back"),
    );
    dormant().await;
    client.create(&web(&fixture, "front", "hello")).await.unwrap();
    all_serve(&client, &front).await;
    eventually(async || client.get_required::<Web>(&front).await.unwrap().is_ready()).await;
    for round in 0..2 {
        install(&client, &Banner::crd()).await;
        for name in ["front", "back"] {
            // The real server learns of a new kind a little after it has said so.
            eventually(async || client.create(&banner(&fixture, name)).await.is_ok()).await;
        }
        let state = async |key| ready::<Banner>(&client, key).await;
        eventually(async || state(&front).await == summary("True", "AllConditionsMet")).await;
        eventually(async || state(&back).await == summary("False", "NoWeb")).await;
        if round == 1 {
            client.create(&web(&fixture, "back", "hello")).await.unwrap();
            eventually(async || state(&back).await == summary("True", "AllConditionsMet")).await;
            the_table_of_banners(&fixture).await;
        }
        uninstall(&client, &Banner::crd()).await;
        dormant().await;
        // As the garbage collector does, which these servers do not run.
        for name in ["front-banner", "back-banner"] {
            let text = ObjectKey::new(fixture.namespace(), name);
            let deleted = client.delete::<ConfigMap>(&text, DeleteOptions::default());
            deleted.await.unwrap();
        }
        // The other kind continues.
        let change = Patch::Merge(json!({"spec": {"page": format!("round {round}")}}));
        client.patch::<Web>(&front, &change).await.unwrap();
        let wanted = format!("round {round}");
        eventually(async || page(&client, &front).await.as_deref() == Some(&wanted)).await;
    }
    running.stop().await;
}

async fn the_table_of_banners(fixture: &Fixture) {
    let stand = Stand::new(fixture.client()).await.unwrap();
    let namespace = fixture.namespace();
    let table = [
        Case::new("one that is gone is none of our business").request(ObjectKey::new(namespace, "gone")),
        Case::new("a child is applied once after a restart")
            .request(ObjectKey::new(namespace, "front"))
            .writes([format!("apply configmaps {namespace}/front-banner")]),
        Case::new("one that is shown already stays as it is").request(ObjectKey::new(namespace, "front")),
    ];
    let reconciler = managed(BannerReconciler);
    for case in table {
        case.check(&stand, &reconciler).await;
    }
}

// R41, R47
#[steersman_testing::test]
async fn a_cluster_is_added_and_removed_with_its_secret(fixture: Fixture) {
    let server = fixture.own_server(OwnServerOptions::default()).await;
    let edge = Cluster::new(server.endpoint().config(server.admin()).unwrap()).unwrap();
    let edge = edge.live().field_manager("tests");
    let namespace: Namespace = object(json!({"metadata": {"name": fixture.namespace()}}));
    edge.create(&namespace).await.unwrap();
    install(&edge, &Web::crd()).await;
    edge.create(&web(&fixture, "remote", "hello")).await.unwrap();

    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let home = manager.client().unwrap().live();
    install(&home, &Web::crd()).await;
    site::add(&manager).unwrap();
    let running = run(&manager);
    let follower = manager.clone();
    let _following = Spawner::current().spawn("clusters", async move {
        let failed = clusters::follow(&follower).await;
        panic!("{}", failed.unwrap_err());
    });
    let secret = |name: &str, kubeconfig: &str| -> Secret {
        object(json!({
            "metadata": {
                "name": name, "namespace": fixture.namespace(), "labels": {clusters::LABEL: ""},
            },
            "stringData": {clusters::KUBECONFIG: kubeconfig},
        }))
    };
    // An invalid object affects no other object.
    home.create(&secret("nonsense", "{")).await.unwrap();
    let kubeconfig = server.endpoint().kubeconfig(server.admin());
    home.create(&secret("edge", &kubeconfig)).await.unwrap();
    let remote = ObjectKey::new(fixture.namespace(), "remote");
    eventually(async || page(&edge, &remote).await.is_some()).await;

    let key = ObjectKey::new(fixture.namespace(), "edge");
    home.delete::<Secret>(&key, DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || manager.cluster_named(&ClusterName::from("edge")).is_none()).await;
    edge.create(&web(&fixture, "late", "hello")).await.unwrap();
    home.create(&web(&fixture, "near", "hello")).await.unwrap();
    let near = ObjectKey::new(fixture.namespace(), "near");
    eventually(async || page(&home, &near).await.is_some()).await;
    let late = ObjectKey::new(fixture.namespace(), "late");
    assert_eq!(page(&edge, &late).await, None);
    running.stop().await;
}
