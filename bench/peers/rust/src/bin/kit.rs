// SPDX-License-Identifier: Apache-2.0
//! An operator with five children for each Site, as kube-rs' documentation writes one: it applies each child in each
//! reconcile, and patches the status only if it differs.

use std::{sync::Arc, time::Duration};

use bench_protocol::{
    participant::{self, Start, Told},
    rounds::Rounds,
    sites,
};
use futures::StreamExt;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
    core::NamespaceResourceScope,
    runtime::{Controller, controller::Action, watcher},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

const MANAGER: &str = "kit";

#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Site",
    namespaced,
    status = "SiteStatus"
)]
struct SiteSpec {
    image: String,
    page: String,
    replicas: i32,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct SiteStatus {
    observed_generation: Option<i64>,
    ready_replicas: i32,
    #[schemars(with = "Vec<serde_json::Value>")]
    conditions: Vec<Condition>,
}

struct Operator {
    client: Client,
    rounds: Rounds,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let told = Told::from_environment();
    let driver = participant::lifeline();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let client = Client::try_default().await?;
    let start = Start::now();
    let operator = Arc::new(Operator {
        client: client.clone(),
        rounds: Rounds::default(),
    });
    let any = watcher::Config::default;
    let running = Controller::new(Api::<Site>::all(client.clone()), any())
        .owns(Api::<ConfigMap>::all(client.clone()), any())
        .owns(Api::<Secret>::all(client.clone()), any())
        .owns(Api::<ServiceAccount>::all(client.clone()), any())
        .owns(Api::<Service>::all(client.clone()), any())
        .owns(Api::<Deployment>::all(client), any())
        .run(
            reconcile,
            |_, _: &kube::Error, _| Action::requeue(Duration::from_secs(1)),
            Arc::clone(&operator),
        )
        .for_each(|_| std::future::ready(()));
    let following = Arc::clone(&operator);
    let measured = tokio::task::spawn_blocking(move || following.rounds.follow(&told, start, &driver));
    tokio::select! {
        biased;
        measured = measured => Ok(measured??),
        () = running => {
            eprintln!("error: the controller ended");
            // The thread that waits for the driver would delay a return.
            std::process::exit(1);
        }
    }
}

async fn reconcile(site: Arc<Site>, operator: Arc<Operator>) -> Result<Action, kube::Error> {
    let meta = ObjectMeta {
        namespace: site.metadata.namespace.clone(),
        owner_references: Some(site.controller_owner_ref(&()).into_iter().collect()),
        ..sites::metadata(&site.name_any())
    };
    let spec = &site.spec;
    operator
        .apply(&sites::config_map(&spec.page, meta.clone()))
        .await?;
    operator.apply(&sites::secret(meta.clone())).await?;
    operator.apply(&sites::service_account(meta.clone())).await?;
    operator.apply(&sites::service(meta.clone())).await?;
    let deployment = operator
        .apply(&sites::deployment(&spec.image, spec.replicas, meta))
        .await?;
    let ready = deployment
        .status
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let status = status(&site, ready);
    if site.status.as_ref() != Some(&status) {
        let sites: Api<Site> =
            Api::namespaced(operator.client.clone(), &site.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"status": status}));
        sites
            .patch_status(&site.name_any(), &PatchParams::default(), &patch)
            .await?;
    }
    let round = site.annotations().get(Rounds::ANNOTATION);
    operator
        .rounds
        .reconciled(&site.uid().unwrap_or_default(), round.map_or("", String::as_str));
    Ok(Action::await_change())
}

impl Operator {
    async fn apply<K>(&self, child: &K) -> Result<K, kube::Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let children: Api<K> = Api::namespaced(self.client.clone(), &child.namespace().unwrap_or_default());
        let params = PatchParams::apply(MANAGER).force();
        children
            .patch(&child.name_any(), &params, &Patch::Apply(child))
            .await
    }
}

fn status(site: &Site, ready_replicas: i32) -> SiteStatus {
    let (status, reason) = if ready_replicas < site.spec.replicas {
        ("False", "Progressing")
    } else {
        ("True", "Serving")
    };
    let before = site.status.iter().flat_map(|status| &status.conditions);
    let before = before.into_iter().find(|condition| condition.status == status);
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: site.metadata.generation,
        last_transition_time: before.map_or_else(
            || Time(Timestamp::now()),
            |before| before.last_transition_time.clone(),
        ),
    };
    SiteStatus {
        observed_generation: site.metadata.generation,
        ready_replicas,
        conditions: vec![ready],
    }
}
