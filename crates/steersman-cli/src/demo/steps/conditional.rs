// SPDX-License-Identifier: Apache-2.0
//! Installs and removes the CRD of a second kind.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future::BoxFuture};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    ResourceExt,
    api::{WatchEvent, WatchParams},
};
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_core::ObjectKey;
use steersman_demo::{self as site, Banner, Ready};

use super::converge::name;
use crate::{
    demo::{
        sight::LIMIT,
        stage::Stage,
        step::{Account, Step, StepError},
    },
    replica::NAMESPACE,
};

pub(crate) struct Conditional;

impl Step for Conditional {
    fn name(&self) -> &'static str {
        "conditional"
    }

    fn title(&self) -> &'static str {
        "The CRD of a second kind is installed, removed, and installed again"
    }

    fn look_for(&self) -> &'static str {
        "its controller starts and stops with it, in the same process; the first one is not affected"
    }

    fn run<'a>(
        &'a self,
        stage: &'a mut Stage,
        account: &'a mut Account,
    ) -> BoxFuture<'a, Result<(), StepError>> {
        run(stage, account).boxed()
    }
}

async fn run(stage: &mut Stage, account: &mut Account) -> Result<(), StepError> {
    rest(stage).await?;
    let reads = stage.requests.count();
    let (mut installed, mut uninstalled, mut meanwhile) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.rounds(2, 5) {
        if round > 0 {
            let began = stage.now();
            uninstall(stage).await?;
            rest(stage).await?;
            uninstalled.push(stage.since(began));
            meanwhile.push(web_follows(stage, &format!("without banners {round}")).await?);
        }
        let began = stage.now();
        install(stage).await?;
        installed.push(stage.since(began));
        meanwhile.push(web_follows(stage, &format!("with banners {round}")).await?);
    }
    account.measured("installed_to_ready", "from the CRD to a ready Banner", installed)?;
    account.measured(
        "uninstalled_to_dormant",
        "from its deletion to dormant controllers",
        uninstalled,
    )?;
    account.measured(
        "first_kind_meanwhile",
        "meanwhile, from a change of a Web to its ConfigMap",
        meanwhile,
    )?;
    // The Banner's controller uses the watches of Webs and ConfigMaps that the first controller has open.
    stage.requests.ensure_only(reads)?;
    account.note("the watches of the first controller stayed open: no list, no new watch")
}

/// Waits until all replicas report that the controller of the second kind is dormant.
async fn rest(stage: &Stage) -> Result<(), StepError> {
    for replica in stage.replicas() {
        let rests = |state: &crate::replica::State| state.dormant.iter().any(|name| name == "banner");
        replica
            .when("reports the controller of Banners as dormant", rests)
            .await?;
    }
    Ok(())
}

/// Installs the kind, creates an object of it, and waits until the object is ready.
async fn install(stage: &Stage) -> Result<(), StepError> {
    let client = stage.home.client();
    client.apply(&site::definitions()[1]).await?;
    let banner: Banner = serde_json::from_value(json!({
        "apiVersion": "examples.steersman.dev/v1",
        "kind": "Banner",
        "metadata": {"name": name(1), "namespace": NAMESPACE},
        "spec": {"text": "closed on Sundays"},
    }))?;
    let made = client.create(&banner).await?;
    // With a watch that exists only here: an informer would miss the kind between two rounds, and poll for it at
    // intervals.
    let from = made.resource_version().unwrap_or_default();
    let watching = async {
        let events = client
            .watch::<Banner>(NAMESPACE, &WatchParams::default(), &from)
            .await?;
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            if let WatchEvent::Added(banner) | WatchEvent::Modified(banner) = event?
                && banner.is_ready()
            {
                return Ok(());
            }
        }
        Err(StepError::Blind)
    };
    in_time("the Banner is ready", watching).await
}

async fn uninstall(stage: &Stage) -> Result<(), StepError> {
    let client = stage.home.client();
    let key = ObjectKey::new("", &site::definitions()[1].name_any());
    client
        .delete::<CustomResourceDefinition>(&key, DeleteOptions::default())
        .await?;
    Ok(())
}

/// Measures the time from a change of a Web to the change of its child.
async fn web_follows(stage: &Stage, page: &str) -> Result<Duration, StepError> {
    let began = stage.now();
    stage.home.apply_web(&name(2), page).await?;
    stage.home.has_page(&name(2), page).await?;
    Ok(stage.since(began))
}

async fn in_time<T>(what: &str, work: impl Future<Output = Result<T, StepError>>) -> Result<T, StepError> {
    match tokio::time::timeout(LIMIT, work).await {
        Ok(done) => done,
        Err(_) => Err(StepError::NotInTime {
            what: what.to_owned(),
            limit: LIMIT,
        }),
    }
}
