// SPDX-License-Identifier: Apache-2.0
//! `steersman demo`: shows the framework with a real operator, without a cluster.
//!
//! [`stage::Stage`] has an API server, replicas as processes, and informers on the server. [`steps`] act on it; each
//! step verifies its claim on the server, and measures. [`view::View`] prints the result.
//!
//! # Guarantees
//! 1. Nothing is simulated in the output: each line reports an observation on the API server or a message of a replica.
//! 2. If a step fails, the demo ends with code 1 and names the step.
//! 3. However the demo ends, its processes are stopped and its files are removed.

mod measure;
mod program;
mod requests;
mod scene;
mod sight;
mod stage;
mod step;
mod steps;
mod view;

use std::sync::Arc;

use futures::FutureExt;
use steersman_runtime::Signals;

use self::{
    stage::{Stage, StageError},
    step::{Account, StepError},
    steps::STEPS,
    view::View,
};
use crate::{
    args::Demo,
    exit::{End, Outcome, OutputError},
    replica::LEASE_DURATION,
};

/// The demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot start the demo")]
    Stage(#[from] StageError),
    #[error("step `{step}` failed")]
    Step {
        step: &'static str,
        #[source]
        source: Box<StepError>,
    },
    #[error("cannot write the output of the demo")]
    Output(#[from] OutputError),
}

pub(crate) fn main(options: &Demo) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::install()?;
        let view = Arc::new(View::new(options));
        // A signal drops the running steps, and with them the stage.
        let stage = tokio::select! {
            biased;
            signal = signals.stop() => {
                view.clear()?;
                return Ok(End::Interrupted(signal));
            }
            told = tell(options, &view).boxed() => told?,
        };
        if !options.fast {
            invite(&stage, &view)?;
            signals.stop().await;
        }
        Ok(End::Done)
    })
}

/// Runs all steps; returns the stage as they leave it.
async fn tell(options: &Demo, view: &Arc<View>) -> Result<Stage, DemoError> {
    view.line("Steersman: a real operator, two replicas of it, and an API server, all on this machine.")?;
    view.line(&format!(
        "The lease is shortened to {} s for the show; its default is 15 s. Pods pretend to start, in {} ms.",
        LEASE_DURATION.as_secs(),
        stage::STARTUP.as_millis(),
    ))?;
    let mut stage = Stage::set(options).await?;
    view.line(&format!("kubeconfig: {}", stage.kubeconfig().display()))?;
    let first = stage.now();
    for (number, step) in STEPS.iter().enumerate() {
        view.line("")?;
        view.line(
            &view
                .paint()
                .bold(format!("{}/{}  {}", number + 1, STEPS.len(), step.title())),
        )?;
        view.line(&format!("     look for  {}", step.look_for()))?;
        let mut account = Account::new(step.name(), Arc::clone(view));
        let scene = stage.scene();
        let began = stage.now();
        let done = view::during(view, &scene, step.title(), step.run(&mut stage, &mut account)).await;
        done.map_err(|source| DemoError::Step {
            step: step.name(),
            source: Box::new(source),
        })?;
        let took = measure::text(stage.now().saturating_since(began));
        view.line(&view.paint().dim(format!("     the step took {took}")))?;
    }
    let all = measure::Measure::new("total", [stage.since(first)]);
    view.datum(&all.json("demo"))?;
    view.line("")?;
    view.line(&format!("All steps succeeded, in {}.", all.text()))?;
    Ok(stage)
}

/// Prints commands to try.
fn invite(stage: &Stage, view: &View) -> Result<(), OutputError> {
    let path = stage.kubeconfig().display();
    view.line("")?;
    view.line(&view.paint().bold("Your turn. In another terminal:"))?;
    view.line(&format!("     export KUBECONFIG={path}"))?;
    view.line("     kubectl get webs,banners,deployments")?;
    view.line("     kubectl delete configmap web-01; kubectl get configmap web-01 -o yaml")?;
    view.line("     kubectl scale deployment web-02 --replicas=0; kubectl get deployment web-02")?;
    view.line("     kubectl delete crd banners.examples.steersman.dev")?;
    view.line("Ctrl-C ends every process and removes every file.")
}
