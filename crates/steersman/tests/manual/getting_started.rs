// SPDX-License-Identifier: Apache-2.0
//! The test of the page with which the manual begins.

use std::{collections::BTreeMap, sync::Arc};

use kube::{CustomResource, Resource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman::runtime::Builder;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Greeting", namespaced)]
pub struct GreetingSpec {
    pub text: String,
}

struct Greeter;

impl ObjectReconciler<Greeting> for Greeter {
    type Error = ClientError;

    async fn reconcile(&self, greeting: Arc<Greeting>, cx: Context) -> Result<Action, Self::Error> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: greeting.metadata.name.clone(),
                namespace: greeting.metadata.namespace.clone(),
                owner_references: greeting.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(
                "greeting".to_owned(),
                greeting.spec.text.clone(),
            )])),
            ..ConfigMap::default()
        };
        cx.client().force().apply(&map).await?;
        Ok(Action::await_change())
    }
}

fn controller() -> Builder<Request, Greeting> {
    Controller::of::<Greeting>("greetings")
        .owns::<ConfigMap>()
        .when_installed()
}
use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResourceExt;
use steersman::prelude::*;
use steersman_testing::{Fixture, eventually};

#[steersman_testing::test]
async fn a_greeting_becomes_a_config_map(fixture: Fixture) {
    fixture.install(&Greeting::crd()).await;
    let cluster = Cluster::builder("test")
        .field_manager("test")
        .service(fixture.client())
        .build()
        .await
        .unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    controller()
        .namespace(fixture.namespace())
        .add_to(&manager, Greeter)
        .unwrap();

    let client = manager.client().unwrap();
    let user = async {
        let mut greeting = Greeting::new(
            "a",
            GreetingSpec {
                text: "hello".to_owned(),
            },
        );
        greeting.metadata.namespace = Some(fixture.namespace().to_owned());
        client.create(&greeting).await.unwrap();
        let key = ObjectKey::new(fixture.namespace(), "a");
        eventually("there is a map", async || {
            client.get::<ConfigMap>(&key).await.unwrap()
        })
        .await;
    };
    manager.run_until(user).await.unwrap();
}
