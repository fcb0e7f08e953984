// SPDX-License-Identifier: Apache-2.0
//! Starts two replicas.

use futures::{FutureExt, future::BoxFuture};

use crate::demo::{
    stage::Stage,
    step::{Account, Step, StepError},
};

pub(crate) struct Start;

impl Step for Start {
    fn name(&self) -> &'static str {
        "start"
    }

    fn title(&self) -> &'static str {
        "Two replicas of the operator start as separate processes"
    }

    fn look_for(&self) -> &'static str {
        "one takes the lease; the other fills its caches and stands by"
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
    account.note(format!("the API server answers at {}", stage.home.url()))?;
    let began = stage.now();
    let mut warm = vec![stage.add_replica().await?];
    let leader = stage.holder(|_| true).await?;
    let leads = stage.since(began);
    warm.push(stage.add_replica().await?);
    for replica in stage.replicas() {
        let is_leader = replica.name() == leader;
        replica
            .when("knows who leads", |state| state.leads == is_leader)
            .await?;
    }
    account.measured("leads", format!("{leader} leads"), [leads])?;
    account.measured("warm", "both are warm: caches in sync, queues filled", warm)
}
