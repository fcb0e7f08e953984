// SPDX-License-Identifier: Apache-2.0
//! A table of cases.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use steersman::{
    prelude::*,
    runtime::testing::{Case, Stand},
};
use steersman_testing::Fixture;

async fn greet(request: Request, cx: Context) -> Result<Action, ClientError> {
    let Some(map) = cx.client().get::<ConfigMap>(request.key()).await? else {
        return Ok(Action::await_change());
    };
    if map.data.is_none() {
        let mut map = ConfigMap::clone(&map);
        map.data = Some(BTreeMap::from([("greeting".to_owned(), "hello".to_owned())]));
        cx.client().update(&map).await?;
    }
    Ok(Action::await_change())
}

#[steersman_testing::test]
async fn the_table_of_greetings(fixture: Fixture) {
    let namespace = fixture.namespace();
    let given = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "empty", "namespace": namespace},
    });

    let stand = Stand::new(fixture.client()).await.unwrap();
    for case in [
        Case::new("ignores a deleted map").request(ObjectKey::new(namespace, "deleted")),
        Case::new("greets an empty map")
            .given(&given)
            .writes([format!("update configmaps {namespace}/empty")]),
        Case::new("leaves a greeted map unchanged").request(ObjectKey::new(namespace, "empty")),
    ] {
        case.check(&stand, &reconcile_fn(greet)).await;
    }
}
