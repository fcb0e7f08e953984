// SPDX-License-Identifier: Apache-2.0
//! The operator of the benchmark `kit`, with the kit: five children for each Site.

#![allow(clippy::print_stderr, reason = "stderr is for people")]

use std::{collections::BTreeMap, error::Error, sync::Arc};

use bench_protocol::{
    participant::{self, Start, Told},
    rounds::Rounds,
};
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
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman::{
    kit::{ConditionSet, Conditions, KindReconciler, NoCleanup, Status, Work, managed},
    prelude::*,
    runtime::{BoxError, Logging},
};

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

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize, Status)]
#[serde(rename_all = "camelCase", default)]
struct SiteStatus {
    observed_generation: Option<i64>,
    ready_replicas: i32,
    conditions: Conditions<Cond>,
}

#[derive(Clone, ConditionSet, Copy, Debug)]
enum Cond {
    PagePublished,
    TokenPublished,
    AccountCreated,
    ServiceCreated,
    Available,
}

struct Sites(Arc<Rounds>);

impl KindReconciler for Sites {
    type Kind = Site;
    type Status = SiteStatus;
    type Children = (ConfigMap, Secret, ServiceAccount, Service, Deployment);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, site: &Site, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.child(Cond::PagePublished, page(site)).await;
        work.child(Cond::TokenPublished, token(site)).await;
        work.child(Cond::AccountCreated, account(site)).await;
        work.child(Cond::ServiceCreated, service(site)).await;
        let deployment = work.child(Cond::Available, deployment(site)).await;
        let ready = deployment.and_then(|it| it.status.as_ref()?.ready_replicas);
        work.status_mut().ready_replicas = ready.unwrap_or(0);
        let round = site
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(Rounds::ANNOTATION));
        let uid = site.metadata.uid.as_deref().unwrap_or_default();
        self.0.reconciled(uid, round.map_or("", String::as_str));
        Ok(Action::await_change())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let told = Told::from_environment();
    let driver = participant::lifeline();
    Logging::from_env().install()?;
    let start = Start::now();
    let manager = Manager::builder()
        .metrics(|server| server.address(([127, 0, 0, 1], 0).into()))
        .build()
        .await?;
    let rounds = Arc::new(Rounds::default());
    Controller::of::<Site>("sites").add_to(&manager, managed(Sites(Arc::clone(&rounds))))?;
    let measured = tokio::task::spawn_blocking(move || rounds.follow(&told, start, &driver));
    tokio::select! {
        biased;
        measured = measured => Ok(measured??),
        ended = manager.run() => {
            eprintln!("error: the manager ended: {ended:?}");
            // The thread that waits for the driver would delay a return.
            std::process::exit(1);
        }
    }
}

fn labels(site: &Site) -> BTreeMap<String, String> {
    let name = site.metadata.name.as_deref().unwrap_or_default();
    [
        ("app.kubernetes.io/name", "site"),
        ("app.kubernetes.io/instance", name),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn metadata(site: &Site) -> ObjectMeta {
    ObjectMeta {
        name: site.metadata.name.clone(),
        labels: Some(labels(site)),
        ..ObjectMeta::default()
    }
}

fn page(site: &Site) -> ConfigMap {
    ConfigMap {
        metadata: metadata(site),
        data: Some([("index.html".to_owned(), site.spec.page.clone())].into()),
        ..ConfigMap::default()
    }
}

fn token(site: &Site) -> Secret {
    let name = site.metadata.name.clone().unwrap_or_default();
    Secret {
        metadata: metadata(site),
        data: Some([("site".to_owned(), ByteString(name.into_bytes()))].into()),
        ..Secret::default()
    }
}

fn account(site: &Site) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(site),
        ..ServiceAccount::default()
    }
}

fn service(site: &Site) -> Service {
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: 80,
        target_port: Some(IntOrString::Int(8080)),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(site),
        spec: Some(ServiceSpec {
            selector: Some(labels(site)),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn deployment(site: &Site) -> Deployment {
    let name = site.metadata.name.clone().unwrap_or_default();
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
            name: name.clone(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let pod = PodSpec {
        service_account_name: Some(name),
        containers: vec![container],
        volumes: Some(vec![volume]),
        ..PodSpec::default()
    };
    Deployment {
        metadata: metadata(site),
        spec: DeploymentSpec {
            replicas: Some(site.spec.replicas),
            selector: LabelSelector {
                match_labels: Some(labels(site)),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels(site)),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    }
}
