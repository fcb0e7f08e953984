// SPDX-License-Identifier: Apache-2.0
//! The operator of the benchmark `kit`, with the kit: five children for each Site.

#![allow(clippy::print_stderr, reason = "stderr is for people")]

use std::{error::Error, sync::Arc};

use bench_protocol::{
    participant::{self, Start, Told},
    rounds::Rounds,
    sites,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
};
use kube::{CustomResource, ResourceExt};
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
        let (spec, metadata) = (&site.spec, sites::metadata(&site.name_any()));
        work.child(
            Cond::PagePublished,
            sites::config_map(&spec.page, metadata.clone()),
        )
        .await;
        work.child(Cond::TokenPublished, sites::secret(metadata.clone()))
            .await;
        work.child(Cond::AccountCreated, sites::service_account(metadata.clone()))
            .await;
        work.child(Cond::ServiceCreated, sites::service(metadata.clone()))
            .await;
        let deployment = sites::deployment(&spec.image, spec.replicas, metadata);
        let deployment = work.child(Cond::Available, deployment).await;
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
