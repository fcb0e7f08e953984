// SPDX-License-Identifier: Apache-2.0
//! The usage of quotas, compared with that of kube-controller-manager.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_testing::{Fixture, OwnServer, OwnServerOptions, eventually};

async fn create<K>(server: &OwnServer, object: Value) -> kube::Result<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let api: Api<K> = Api::namespaced(server.client(), "default");
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await
}

/// Waits until the status of the quota `q` says so.
async fn used(server: &OwnServer, wanted: Value) {
    let quotas: Api<ResourceQuota> = Api::namespaced(server.client(), "default");
    eventually(&format!("{wanted} in use"), async || {
        let quota = serde_json::to_value(quotas.get("q").await.unwrap()).unwrap();
        (quota["status"]["used"] == wanted).then_some(())
    })
    .await;
}

fn pod(name: &str) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "600m"}}});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}})
}

#[steersman_testing::test]
async fn counts_the_resources_of_a_quota(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().controllers())
        .await;
    let map = |name: &str| json!({"metadata": {"name": name}});
    create::<ConfigMap>(&server, map("before")).await.unwrap();
    let hard = json!({"count/configmaps": "2", "pods": "5", "requests.cpu": "1"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    create::<ResourceQuota>(&server, quota).await.unwrap();
    used(
        &server,
        json!({"count/configmaps": "1", "pods": "0", "requests.cpu": "0"}),
    )
    .await;

    create::<ConfigMap>(&server, map("second")).await.unwrap();
    create::<Pod>(&server, pod("one")).await.unwrap();
    used(
        &server,
        json!({"count/configmaps": "2", "pods": "1", "requests.cpu": "600m"}),
    )
    .await;
    for refused in [
        create::<ConfigMap>(&server, map("third")).await.map(|_| ()),
        create::<Pod>(&server, pod("two")).await.map(|_| ()),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("exceeded quota: q"), "{error}");
    }

    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    pods.patch_status("one", &PatchParams::default(), &ended)
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    maps.delete("second", &DeleteParams::default()).await.unwrap();
    used(
        &server,
        json!({"count/configmaps": "1", "pods": "0", "requests.cpu": "0"}),
    )
    .await;
    create::<Pod>(&server, pod("two")).await.unwrap();
    used(
        &server,
        json!({"count/configmaps": "1", "pods": "1", "requests.cpu": "600m"}),
    )
    .await;
}
