// SPDX-License-Identifier: Apache-2.0
//! Adds and removes a second cluster.

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_demo::clusters::{KUBECONFIG, LABEL};

use crate::{
    demo::{
        stage::{Place, Stage, key},
        step::{Account, Step, StepError, ensure},
    },
    replica::{EDGE, NAMESPACE},
};

/// Number of Webs in the second cluster.
const WEBS: usize = 5;

pub(crate) struct Clusters;

impl Step for Clusters {
    fn name(&self) -> &'static str {
        "clusters"
    }

    fn title(&self) -> &'static str {
        "A second cluster is added and removed"
    }

    fn look_for(&self) -> &'static str {
        "a Secret with its kubeconfig adds it; without the Secret the operator ignores the cluster"
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
    let edge = Place::open(EDGE, 0, &stage.requests).await.map_err(Box::new)?;
    account.note(format!("a second API server answers at {}", edge.url()))?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": EDGE, "namespace": NAMESPACE, "labels": {LABEL: ""}},
        "stringData": {KUBECONFIG: edge.kubeconfig()},
    }))?;
    let (mut engaged, mut disengaged) = (Vec::new(), Vec::new());
    for round in 1..=stage.rounds(1, 3) {
        let name = |number: usize| format!("edge-{round}-{number}");
        for number in 1..=WEBS {
            edge.apply_web(&name(number), "far away").await?;
        }
        let began = stage.now();
        stage.home.client().create(&secret).await?;
        for number in 1..=WEBS {
            edge.has_page(&name(number), "far away").await?;
            engaged.push(stage.since(began));
        }
        for replica in stage.replicas() {
            replica
                .when("adds the second cluster", |state| state.edge)
                .await?;
        }
        let began = stage.now();
        let deleted = stage.home.client();
        deleted
            .delete::<Secret>(&key(EDGE), DeleteOptions::default())
            .await?;
        for replica in stage.replicas() {
            replica
                .when("removes the second cluster", |state| !state.edge)
                .await?;
        }
        disengaged.push(stage.since(began));
        nobody_looks(stage, &edge, round).await?;
    }
    account.measured(
        "engaged",
        "from the Secret to the ConfigMaps of five Webs there",
        engaged,
    )?;
    account.measured(
        "disengaged",
        "from its deletion to replicas without the cluster",
        disengaged,
    )?;
    account.note("a Web that is applied there now is ignored, while one on the first cluster is served")
}

/// Verifies that the operator ignores a Web on the edge: it serves a later one on the home cluster, but not that one.
async fn nobody_looks(stage: &Stage, edge: &Place, round: usize) -> Result<(), StepError> {
    let (left, served) = (format!("left-{round}"), format!("served-{round}"));
    edge.apply_web(&left, "nobody").await?;
    stage.home.apply_web(&served, "hello").await?;
    stage.home.has_page(&served, "hello").await?;
    let map = edge.maps.get(&key(&left)).await?;
    ensure(
        map.is_none(),
        "the second cluster was removed, and is still reconciled",
    )
}
