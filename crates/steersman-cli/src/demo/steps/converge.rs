// SPDX-License-Identifier: Apache-2.0
//! Applies objects and waits until they converge.

use std::time::Duration;

use futures::{
    FutureExt,
    future::{BoxFuture, try_join_all},
};
use steersman_demo::{Ready, Web};

use crate::demo::{
    stage::{Stage, key},
    step::{Account, Step, StepError, ensure},
};

/// Number of Webs.
pub(crate) const WEBS: usize = 20;

pub(crate) struct Converge;

impl Step for Converge {
    fn name(&self) -> &'static str {
        "converge"
    }

    fn title(&self) -> &'static str {
        "Twenty Webs are applied at once"
    }

    fn look_for(&self) -> &'static str {
        "each gets a ConfigMap and a Deployment, and the condition Ready"
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
    let stage = &*stage;
    let times = try_join_all((1..=WEBS).map(|number| one(stage, number))).await?;
    let (pages, ready): (Vec<Duration>, Vec<Duration>) = times.into_iter().unzip();
    account.measured(
        "applied_to_children",
        "from the apply of a Web to its ConfigMap",
        pages,
    )?;
    account.measured(
        "applied_to_ready",
        "from the apply of a Web to its condition Ready",
        ready,
    )?;
    let first = stage.home.webs.get(&key(&name(1))).await?;
    let status = first.as_ref().and_then(|web| web.status.as_ref());
    let summary = status.and_then(|status| status.conditions.summary());
    ensure(summary.is_some(), "a Web that was ready has no condition")?;
    if let Some(summary) = summary {
        let (kind, status, reason) = (&summary.type_, &summary.status, &summary.reason);
        account.note(format!("{}: {kind}={status} {reason}", name(1)))?;
    }
    Ok(())
}

/// Measures the time until one Web has its page, and until it is ready.
async fn one(stage: &Stage, number: usize) -> Result<(Duration, Duration), StepError> {
    let name = name(number);
    let began = stage.now();
    stage.home.apply_web(&name, "hello").await?;
    stage.home.has_page(&name, "hello").await?;
    let page = stage.since(began);
    is_ready(stage, &name).await?;
    Ok((page, stage.since(began)))
}

/// Returns the name of the Web with this number.
pub(crate) fn name(number: usize) -> String {
    format!("web-{number:02}")
}

/// Waits until a Web has the condition Ready.
pub(crate) async fn is_ready(stage: &Stage, name: &str) -> Result<(), StepError> {
    let what = format!("Web {name} has the condition Ready");
    let is_ready = |web: Option<&Web>| web?.is_ready().then_some(());
    stage.home.webs.until(what, &key(name), is_ready).await
}
