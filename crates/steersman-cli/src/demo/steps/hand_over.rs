// SPDX-License-Identifier: Apache-2.0
//! Stops the leader with SIGTERM, so that it releases the lease.

use futures::{FutureExt, future::BoxFuture};
use rustix::process::Signal;

use crate::demo::{
    stage::Stage,
    step::{Account, Step, StepError, ensure},
};

pub(crate) struct HandOver;

impl Step for HandOver {
    fn name(&self) -> &'static str {
        "hand_over"
    }

    fn title(&self) -> &'static str {
        "The leader is stopped with SIGTERM, as in a rollout"
    }

    fn look_for(&self) -> &'static str {
        "it finishes its work and releases the lease, and the standby writes a moment later"
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
    let (mut taken, mut wrote) = (Vec::new(), Vec::new());
    for round in 1..=stage.rounds(2, 5) {
        let mut leader = stage.take_leader().await?;
        let name = leader.name().to_owned();
        leader.signal(Signal::TERM)?;
        let told = stage.now();
        stage.holder(|holder| holder != name).await?;
        taken.push(stage.since(told));
        // Applied only now, so that only the new leader can write its children.
        let web = format!("after-term-{round}");
        stage.home.apply_web(&web, "hello").await?;
        stage.home.has_page(&web, "hello").await?;
        wrote.push(stage.since(told));
        let status = leader.ended().await?;
        ensure(
            status.success(),
            format!("replica {name} ended with {status} instead of 0"),
        )?;
        drop(leader);
        stage.add_replica().await?;
    }
    account.measured(
        "told_to_taken",
        "from SIGTERM to the lease of the new leader",
        taken,
    )?;
    account.measured(
        "told_to_written",
        "from SIGTERM to a new Web's ConfigMap by the new leader",
        wrote,
    )
}
