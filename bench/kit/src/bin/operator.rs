// SPDX-License-Identifier: Apache-2.0
//! The operator of the benchmark `kit`, with the kit: five children for each Site.

#![allow(
    clippy::exhaustive_structs,
    reason = "this is how an operator's author writes them"
)]

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use bench_kit::ROUND;
use bench_protocol::participant::{self, Start, Told, rounded};
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
use tokio::sync::{Notify, mpsc};

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

struct Sites(&'static Rounds);

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
        self.0.reconciled(site);
        Ok(Action::await_change())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let told = Told::from_environment();
    let driver = participant::lifeline();
    Logging::from_env().install()?;
    let (mut start, mut before) = (Start::now(), 0);
    let rounds: &'static Rounds = Box::leak(Box::default());
    let manager = Manager::builder()
        .metrics(|server| server.address(([127, 0, 0, 1], 0).into()))
        .build()
        .await?;
    Controller::of::<Site>("sites").add_to(&manager, managed(Sites(rounds)))?;
    let running = manager.run();
    let (sender, mut lines) = mpsc::channel(8);
    thread::spawn(move || driver.iter().all(|line| sender.blocking_send(line).is_ok()));
    let measured = async {
        while let Some(line) = lines.recv().await {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["measure"] => {
                    (start, before) = (Start::now(), rounds.ended());
                    participant::say("armed");
                }
                ["row", case, requests] => {
                    let (taken, reconciles) = (start.taken(), rounds.ended() - before);
                    let each = taken.cpu.as_secs_f64() * 1e6 / reconciles as f64;
                    told.row(taken)
                        .with("case", *case)
                        .with("us_per_reconcile", rounded(each))
                        .with("reconciles", reconciles)
                        .with("requests", requests.parse::<usize>()?)
                        .print();
                }
                ["end"] => break,
                [round] => {
                    rounds.wait(round, told.n).await;
                    participant::say("reconciled");
                }
                _ => return Err(format!("unknown line of the driver: `{line}`").into()),
            }
        }
        Ok::<_, Box<dyn Error>>(())
    };
    tokio::select! {
        biased;
        measured = measured => measured,
        ended = running => Err(format!("the manager ended: {ended:?}").into()),
    }
}

/// The round, an annotation of a Site, that each Site was last reconciled in.
#[derive(Default)]
struct Rounds {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    ended: usize,
    seen: HashMap<ObjectKey, String>,
    round: String,
    current: usize,
}

impl Rounds {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reconciled(&self, site: &Site) {
        let round = site.metadata.annotations.as_ref().and_then(|all| all.get(ROUND));
        let round = round.cloned().unwrap_or_default();
        let mut state = self.state();
        state.ended += 1;
        let last = state.seen.insert(site.key(), round.clone());
        if round == state.round && last.as_ref() != Some(&round) {
            state.current += 1;
            self.changed.notify_one();
        }
    }

    async fn wait(&self, round: &str, sites: usize) {
        {
            let mut state = self.state();
            state.round = round.to_owned();
            state.current = state.seen.values().filter(|last| *last == round).count();
        }
        while self.state().current < sites {
            self.changed.notified().await;
        }
    }

    fn ended(&self) -> usize {
        self.state().ended
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
        spec: Some(DeploymentSpec {
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
        }),
        ..Deployment::default()
    }
}
