// SPDX-License-Identifier: Apache-2.0
//! The test of the page with which the manual begins.

use std::collections::BTreeMap;

use kube::{CustomResource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman::runtime::Builder;

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "example.com",
    version = "v1",
    kind = "Greeting",
    namespaced,
    status = "GreetingStatus"
)]
pub struct GreetingSpec {
    pub text: String,
}

#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GreetingStatus {
    pub observed_generation: Option<i64>,
    pub conditions: Conditions<GreetingCondition>,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum GreetingCondition {
    Published,
}

struct Greeter;

impl KindReconciler for Greeter {
    type Kind = Greeting;
    type Status = GreetingStatus;
    type Children = (ConfigMap,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, greeting: &Greeting, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: greeting.metadata.name.clone(),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(
                "greeting".to_owned(),
                greeting.spec.text.clone(),
            )])),
            ..ConfigMap::default()
        };
        work.child(GreetingCondition::Published, map).await;
        Ok(Action::await_change())
    }
}

fn controller() -> Builder<Request, Greeting> {
    Controller::of::<Greeting>("greetings").when_installed()
}
use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResourceExt;
use steersman::prelude::*;
use steersman_testing::{Fixture, eventually};

#[steersman_testing::test]
async fn a_greeting_becomes_a_config_map(fixture: Fixture) {
    fixture.install(&Greeting::crd()).await;
    let cluster = Cluster::builder("test")
        .service(fixture.client())
        .build()
        .await
        .unwrap();
    let manager = Manager::builder().cluster(cluster).build().await.unwrap();
    controller()
        .namespace(fixture.namespace())
        .add_to(&manager, managed(Greeter))
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
        eventually("it is ready", async || {
            let greeting = client.get_required::<Greeting>(&key).await.unwrap();
            greeting
                .status
                .as_ref()?
                .conditions
                .is_ready(greeting.metadata.generation)
                .then_some(())
        })
        .await;
    };
    manager.run_until(user).await.unwrap();
}
