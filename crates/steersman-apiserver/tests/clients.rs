// SPDX-License-Identifier: Apache-2.0
//! Real clients: kube in this process and over HTTPS.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::net::{Ipv4Addr, SocketAddr};

use futures::{StreamExt, TryStreamExt};
use harness::builder;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    discovery::Discovery,
};
use serde_json::json;
use steersman_apiserver::{ApiServer, Identity};

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

async fn exercise(client: Client) {
    let api = maps(&client);
    let created = api.create(&PostParams::default(), &map("a")).await.unwrap();
    assert!(created.uid().is_some());
    let mut watch = api
        .watch(&WatchParams::default(), &created.resource_version().unwrap())
        .await
        .unwrap()
        .boxed();
    let patch = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"l": "w"}}));
    let applied = api.patch("a", &PatchParams::apply("me"), &patch).await.unwrap();
    assert_eq!(applied.data.unwrap().len(), 2);
    let event = watch.try_next().await.unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Modified(object) if object.data.as_ref().unwrap()["l"] == "w"));
    let conflict = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"l": "x"}}));
    let refused = api
        .patch("a", &PatchParams::apply("you"), &conflict)
        .await
        .unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(api.get_metadata("a").await.unwrap().name_any(), "a");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(matches!(
        watch.try_next().await.unwrap().unwrap(),
        WatchEvent::Deleted(_)
    ));
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn guarantee_1_a_kube_client_works_in_process() {
    let server = builder().build();
    exercise(Client::new(server.service(), "default")).await;
}

#[tokio::test]
async fn typed_objects_survive_the_round_trip() {
    let client = Client::new(builder().build().service(), "default");
    let api: Api<Deployment> = Api::namespaced(client, "default");
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
        },
    }))
    .unwrap();
    api.create(&PostParams::default(), &deployment).await.unwrap();
    let scale = api.get_scale("web").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(1));
    let status = json!({"status": {"replicas": 1, "readyReplicas": 1}});
    let updated = api
        .patch_status("web", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    assert_eq!(
        (
            updated.status.unwrap().ready_replicas,
            updated.metadata.generation
        ),
        (Some(1), Some(1))
    );
}

#[tokio::test]
async fn discovery_finds_every_group_both_ways() {
    let client = Client::new(builder().build().service(), "default");
    let one_by_one = Discovery::new(client.clone()).run().await.unwrap();
    let at_once = Discovery::new(client).run_aggregated().await.unwrap();
    for group in [
        "",
        "apps",
        "batch",
        "rbac.authorization.k8s.io",
        "coordination.k8s.io",
    ] {
        assert!(one_by_one.has_group(group) && at_once.has_group(group), "{group}");
    }
}

#[tokio::test]
async fn aggregated_discovery_is_not_sent_again_until_it_changes() {
    let server = builder().build();
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let first = harness::Raw::get("/apis")
        .header("accept", accept)
        .send(&server)
        .await;
    let etag = first.headers("etag").remove(0);
    let again = || {
        harness::Raw::get("/apis")
            .header("accept", accept)
            .header("if-none-match", &etag)
    };
    assert_eq!(again().send(&server).await.code, 304);
    let schema = json!({"type": "object"});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "deprecated": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    harness::Raw::new("POST", path)
        .json(&definition)
        .send(&server)
        .await
        .ok();
    assert_eq!(again().send(&server).await.code, 200);
    let list = harness::Raw::get("/apis/example.com/v1/widgets")
        .send(&server)
        .await;
    assert_eq!(
        list.headers("warning"),
        ["299 - \"example.com/v1 Widget is deprecated\""]
    );
}

async fn over_https(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[tokio::test]
async fn guarantee_1_a_kube_client_works_the_same_over_https() {
    let server = builder().rbac(true).build();
    let listener = server.listen(anywhere()).await.unwrap();
    exercise(over_https(&listener.kubeconfig("admin-token")).await).await;
    let refused = maps(&over_https(&listener.kubeconfig("nonsense")).await)
        .get("a")
        .await
        .unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 401));
}

#[tokio::test]
async fn a_client_certificate_proves_an_identity() {
    let server = builder().rbac(true).build();
    let listener = server.listen(anywhere()).await.unwrap();
    exercise(over_https(&listener.kubeconfig_for(Identity::admin()).unwrap()).await).await;
    let alice = over_https(&listener.kubeconfig_for(Identity::user("alice")).unwrap()).await;
    let refused = maps(&alice).get("a").await.unwrap_err();
    assert!(
        matches!(refused, kube::Error::Api(status) if status.code == 403 && status.message.contains("\"alice\""))
    );
}

#[tokio::test]
async fn dropping_the_listener_closes_its_connections() {
    let server = ApiServer::builder().build();
    let listener = server.listen(anywhere()).await.unwrap();
    let client = over_https(&listener.kubeconfig_for(Identity::admin()).unwrap()).await;
    let api = maps(&client);
    let mut watch = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    drop(listener);
    while let Some(Ok(_)) = watch.next().await {}
    assert!(api.list(&ListParams::default()).await.is_err());
}

#[tokio::test]
async fn a_service_account_acts_by_the_token_that_it_is_given() {
    let server = builder().rbac(true).build();
    let admin = server.service();
    let client = Client::new(admin, "default");
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), "default");
    accounts
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap(),
        )
        .await
        .unwrap();
    let request =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}})).unwrap();
    let granted = accounts
        .create_token_request("robot", &PostParams::default(), &request)
        .await
        .unwrap();
    let token = granted.status.unwrap().token.unwrap_or_default();
    let who = |token: String| {
        let server = server.clone();
        async move {
            let body = json!({});
            let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
            harness::Raw::new("POST", path)
                .token(&token)
                .json(&body)
                .send(&server)
                .await
        }
    };
    assert_eq!(
        who(token.clone()).await.ok()["status"]["userInfo"]["username"],
        "system:serviceaccount:default:robot"
    );
    accounts.delete("robot", &DeleteParams::default()).await.unwrap();
    assert_eq!(who(token).await.code, 401);
}
