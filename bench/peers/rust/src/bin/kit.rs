// SPDX-License-Identifier: Apache-2.0
//! An operator with five children for each Site, as kube-rs' documentation writes one: it applies each child in each
//! reconcile, and patches the status only if it differs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bench_protocol::{
    participant::{self, Start, Told},
    rounds::Rounds,
};
use futures::StreamExt;
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, PodSpec, PodTemplateSpec, Secret,
            Service, ServiceAccount, ServicePort, ServiceSpec, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, LabelSelector, OwnerReference, Time},
        util::intstr::IntOrString,
    },
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
    let labels = labels(&site);
    let meta = ObjectMeta {
        name: site.metadata.name.clone(),
        namespace: site.metadata.namespace.clone(),
        labels: Some(labels.clone()),
        owner_references: Some(
            site.controller_owner_ref(&())
                .into_iter()
                .collect::<Vec<OwnerReference>>(),
        ),
        ..ObjectMeta::default()
    };
    operator.apply(&page(&site, meta.clone())).await?;
    operator.apply(&token(&site, meta.clone())).await?;
    let account = ServiceAccount {
        metadata: meta.clone(),
        ..ServiceAccount::default()
    };
    operator.apply(&account).await?;
    operator.apply(&service(meta.clone(), labels.clone())).await?;
    let deployment = operator.apply(&deployment(&site, meta, labels)).await?;
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

fn labels(site: &Site) -> BTreeMap<String, String> {
    [
        ("app.kubernetes.io/name", "site"),
        ("app.kubernetes.io/instance", &site.name_any()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn page(site: &Site, metadata: ObjectMeta) -> ConfigMap {
    ConfigMap {
        metadata,
        data: Some([("index.html".to_owned(), site.spec.page.clone())].into()),
        ..ConfigMap::default()
    }
}

fn token(site: &Site, metadata: ObjectMeta) -> Secret {
    Secret {
        metadata,
        data: Some([("site".to_owned(), ByteString(site.name_any().into_bytes()))].into()),
        ..Secret::default()
    }
}

fn service(metadata: ObjectMeta, labels: BTreeMap<String, String>) -> Service {
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: 80,
        target_port: Some(IntOrString::Int(8080)),
        ..ServicePort::default()
    };
    Service {
        metadata,
        spec: Some(ServiceSpec {
            selector: Some(labels),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn deployment(site: &Site, metadata: ObjectMeta, labels: BTreeMap<String, String>) -> Deployment {
    let port = ContainerPort {
        name: Some("http".to_owned()),
        container_port: 8080,
        ..ContainerPort::default()
    };
    let mount = VolumeMount {
        name: "page".to_owned(),
        mount_path: "/srv".to_owned(),
        ..VolumeMount::default()
    };
    let container = Container {
        name: "web".to_owned(),
        image: Some(site.spec.image.clone()),
        ports: Some(vec![port]),
        volume_mounts: Some(vec![mount]),
        ..Container::default()
    };
    let volume = Volume {
        name: "page".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: site.name_any(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let pod = PodSpec {
        service_account_name: Some(site.name_any()),
        containers: vec![container],
        volumes: Some(vec![volume]),
        ..PodSpec::default()
    };
    Deployment {
        metadata,
        spec: DeploymentSpec {
            replicas: Some(site.spec.replicas),
            selector: LabelSelector {
                match_labels: Some(labels.clone()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
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
