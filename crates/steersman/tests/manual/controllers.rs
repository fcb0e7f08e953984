// SPDX-License-Identifier: Apache-2.0
//! Children that go with their owners.

use k8s_openapi::api::core::v1::ConfigMap;
use steersman::{cluster::DeleteOptions, prelude::*};
use steersman_testing::{Fixture, OwnServerOptions, eventually};

#[steersman_testing::test]
async fn a_child_is_deleted_with_its_owner(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().controllers())
        .await;
    let cluster = Cluster::builder("test")
        .field_manager("test")
        .service(server.client())
        .build()
        .await
        .unwrap();
    let client = cluster.live();

    let map = |name: &str| -> ConfigMap {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "default"}}))
            .unwrap()
    };
    let owner = client.create(&map("owner")).await.unwrap();
    let mut child = map("child");
    child.metadata.owner_references = kube::Resource::owner_ref(&owner, &()).map(|owner| vec![owner]);
    client.create(&child).await.unwrap();

    let key = |name| ObjectKey::new("default", name);
    client
        .delete::<ConfigMap>(&key("owner"), DeleteOptions::default())
        .await
        .unwrap();
    eventually("the child is deleted", async || {
        client
            .get::<ConfigMap>(&key("child"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}
