// SPDX-License-Identifier: Apache-2.0
//! Kills the leader, and the warm standby takes over.

use futures::{FutureExt, future::BoxFuture};
use rustix::process::Signal;

use super::converge::is_ready;
use crate::{
    demo::{
        stage::Stage,
        step::{Account, Step, StepError},
    },
    replica::LEASE_DURATION,
};

pub(crate) struct Kill;

impl Step for Kill {
    fn name(&self) -> &'static str {
        "kill"
    }

    fn title(&self) -> &'static str {
        "The leader is killed with kill -9"
    }

    fn look_for(&self) -> &'static str {
        "no replica writes until the lease has expired; then the standby writes at once, without a list"
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
    let (mut vacant, mut first, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=stage.rounds(1, 3) {
        let mut leader = stage.take_leader().await?;
        let dead = leader.name().to_owned();
        let reads = stage.requests.count();
        leader.signal(Signal::KILL)?;
        let killed = stage.now();
        leader.ended().await?;
        let writes = stage.requests.writes();
        let web = format!("after-kill-{round}");
        stage.home.apply_web(&web, "hello").await?;
        let heir = stage.holder(|holder| holder != dead).await?;
        let taken = stage.now();
        stage.home.has_page(&web, "hello").await?;
        vacant.push(taken.saturating_since(killed));
        first.push(stage.since(taken));
        stage.requests.ensure_only(reads)?;
        stage.requests.ensure_lease_first(writes, &dead)?;
        is_ready(stage, &web).await?;
        account.note(format!(
            "{dead} is dead; {heir} leads and serves the Web that was applied after the kill"
        ))?;
        drop(leader);
        replaced.push(stage.add_replica().await?);
    }
    let lease = LEASE_DURATION.as_secs();
    account.measured(
        "killed_to_taken",
        format!("from the kill to the lease, which lasts {lease} s here"),
        vacant,
    )?;
    account.measured(
        "taken_to_first_write",
        "from the lease to the first write of the new leader",
        first,
    )?;
    account.measured(
        "replaced",
        "from the start of a new replica to a warm standby",
        replaced,
    )
}
