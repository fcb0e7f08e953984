// SPDX-License-Identifier: Apache-2.0
//! Garbage collection, compared with that of kube-controller-manager.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use steersman_testing::{Fixture, OwnServerOptions, eventually};

fn reference(owner: &ConfigMap) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap(),
        block_owner_deletion: Some(true),
        controller: None,
    }
}

/// Creates ConfigMaps of which each is owned by the one before, and the first by the last.
async fn circle(maps: &Api<ConfigMap>, names: &[&str]) {
    let mut created: Vec<ConfigMap> = Vec::new();
    for name in names {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some((*name).to_owned()),
                owner_references: created.last().map(|owner| vec![reference(owner)]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        created.push(maps.create(&PostParams::default(), &map).await.unwrap());
    }
    let last = reference(created.last().unwrap());
    let patch = json!({"metadata": {"ownerReferences": [last]}});
    maps.patch(names[0], &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[steersman_testing::test]
async fn deletes_owners_in_a_circle_in_the_foreground(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().controllers())
        .await;
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    circle(&maps, &["a", "b", "c"]).await;
    maps.delete("a", &DeleteParams::foreground()).await.unwrap();
    let names = ["a", "b", "c"];
    eventually("no object of the circle is left", async || {
        let left = maps.list(&ListParams::default()).await.unwrap();
        let is_left = |map: &ConfigMap| names.contains(&map.name_any().as_str());
        (!left.items.iter().any(is_left)).then_some(())
    })
    .await;
}
