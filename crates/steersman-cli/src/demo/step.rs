// SPDX-License-Identifier: Apache-2.0
//! A step of the demo, and its output.

use std::{fmt, io, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    measure::Measure,
    stage::{Stage, StageError},
    view::View,
};
use crate::exit::OutputError;

/// A step on the stage, which succeeds or fails.
pub(crate) trait Step: Sync {
    /// Returns the name for programs.
    fn name(&self) -> &'static str;

    /// Returns the title for people.
    fn title(&self) -> &'static str;

    /// Returns the observation to look for.
    fn look_for(&self) -> &'static str;

    /// Runs the step, verifies its claim, and reports it.
    fn run<'a>(
        &'a self,
        stage: &'a mut Stage,
        account: &'a mut Account,
    ) -> BoxFuture<'a, Result<(), StepError>>;
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("this did not happen within {limit:?}: {what}")]
    NotInTime { what: String, limit: Duration },
    #[error("{what}")]
    Untrue { what: String },
    #[error("replica {name} has ended; last output:\n{log}")]
    ReplicaEnded { name: String, log: String },
    #[error("the demo's informer has ended")]
    Blind,
    #[error("a request of the demo failed")]
    Server(#[source] Box<steersman_cluster::Error>),
    #[error("cannot start a part of the step")]
    Stage(#[from] Box<StageError>),
    #[error("a system call of the demo failed")]
    System(#[from] io::Error),
    #[error("cannot write the output of the demo")]
    Output(#[from] OutputError),
    #[error("cannot encode an object of the demo")]
    Object(#[from] serde_json::Error),
}

impl From<steersman_cluster::Error> for StepError {
    fn from(error: steersman_cluster::Error) -> Self {
        Self::Server(Box::new(error))
    }
}

/// Fails unless `is_so` holds.
pub(crate) fn ensure(is_so: bool, what: impl fmt::Display) -> Result<(), StepError> {
    if is_so {
        return Ok(());
    }
    let what = what.to_string();
    Err(StepError::Untrue { what })
}

/// Output of a step.
pub(crate) struct Account {
    step: &'static str,
    view: Arc<View>,
}

impl Account {
    pub(crate) fn new(step: &'static str, view: Arc<View>) -> Self {
        Self { step, view }
    }

    /// Reports an observation.
    pub(crate) fn note(&self, text: impl fmt::Display) -> Result<(), StepError> {
        Ok(self.view.line(&format!("     {text}"))?)
    }

    /// Reports a success and the measured times.
    pub(crate) fn measured(
        &self,
        name: &'static str,
        text: impl fmt::Display,
        samples: impl IntoIterator<Item = Duration>,
    ) -> Result<(), StepError> {
        let measure = Measure::new(name, samples);
        self.view.datum(&measure.json(self.step))?;
        let paint = self.view.paint();
        let (tick, text) = (paint.green("ok"), text.to_string());
        Ok(self
            .view
            .line(&format!("  {tick} {text:<58} {}", measure.text()))?)
    }
}
