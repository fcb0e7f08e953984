// SPDX-License-Identifier: Apache-2.0
//! A whole operator.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, api::Patch};
use steersman::prelude::*;
use steersman_testing::{Fixture, eventually};

async fn mark(request: Request, cx: Context) -> Result<Action, ClientError> {
    if cx.client().get::<ConfigMap>(request.key()).await?.is_some() {
        let seen = Patch::Merge(serde_json::json!({"metadata": {"labels": {"seen": "yes"}}}));
        cx.client().patch::<ConfigMap>(request.key(), &seen).await?;
    }
    Ok(Action::await_change())
}

#[steersman_testing::test]
async fn a_map_is_marked_when_it_is_created(fixture: Fixture) {
    let cluster = Cluster::builder("test")
        .field_manager("test")
        .service(fixture.client())
        .build()
        .await
        .unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    Controller::of::<ConfigMap>("marks")
        .namespace(fixture.namespace())
        .add_to(&manager, reconcile_fn(mark))
        .unwrap();

    let client = manager.client().unwrap().live();
    let user = async {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("a".to_owned());
        map.metadata.namespace = Some(fixture.namespace().to_owned());
        client.create(&map).await.unwrap();
        let key = ObjectKey::new(fixture.namespace(), "a");
        eventually("the map is marked", async || {
            let map = client.get_required::<ConfigMap>(&key).await.unwrap();
            map.labels().contains_key("seen").then_some(())
        })
        .await;
    };
    manager.run_until(user).await.unwrap();
}
