// SPDX-License-Identifier: Apache-2.0
//! Deletes children, and the operator restores them.

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use steersman_cluster::DeleteOptions;

use super::converge::name;
use crate::demo::{
    stage::{Stage, key},
    step::{Account, Step, StepError},
};

/// Number of repetitions.
const TIMES: usize = 10;

pub(crate) struct Restore;

impl Step for Restore {
    fn name(&self) -> &'static str {
        "restore"
    }

    fn title(&self) -> &'static str {
        "Children are deleted by hand"
    }

    fn look_for(&self) -> &'static str {
        "each ConfigMap is created again, because its deletion triggers its owner"
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
    let mut times = Vec::new();
    for number in 1..=TIMES {
        let key = key(&name(number));
        let uid = |map: Option<&ConfigMap>| map?.metadata.uid.clone();
        let maps = &stage.home.maps;
        let before = maps.until("the ConfigMap exists", &key, uid).await?;
        let client = stage.home.client();
        let began = stage.now();
        client.delete::<ConfigMap>(&key, DeleteOptions::default()).await?;
        let is_new = |map: Option<&ConfigMap>| uid(map).filter(|uid| *uid != before);
        let what = format!("ConfigMap {} is created again", key.name());
        maps.until(what, &key, is_new).await?;
        times.push(stage.since(began));
    }
    account.measured(
        "deleted_to_restored",
        "from the deletion of a ConfigMap to a new one",
        times,
    )
}
