// SPDX-License-Identifier: Apache-2.0
//! What a step is, and what it tells.

use std::{fmt, io, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    measure::Measure,
    stage::{Stage, StageError},
    view::View,
};
use crate::exit::OutputError;

/// Something that is done on the stage, and comes true or not.
pub(crate) trait Step: Sync {
    /// What programs call it.
    fn name(&self) -> &'static str;

    /// What people call it.
    fn title(&self) -> &'static str;

    /// What people should look at.
    fn look_for(&self) -> &'static str;

    /// Does it, looks whether it came true, and tells of it.
    fn run<'a>(
        &'a self,
        stage: &'a mut Stage,
        account: &'a mut Account,
    ) -> BoxFuture<'a, Result<(), StepError>>;
}

/// A step did not come true.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("this did not happen within {limit:?}: {what}")]
    NotInTime { what: String, limit: Duration },
    #[error("{what}")]
    Untrue { what: String },
    #[error("replica {name} has ended; the last it said:\n{log}")]
    ReplicaEnded { name: String, log: String },
    #[error("the demo does not see the API server any more")]
    Blind,
    #[error("the API server does not do what the demo asks for")]
    Server(#[source] Box<steersman_cluster::Error>),
    #[error("something that the step needs does not start")]
    Stage(#[from] Box<StageError>),
    #[error("the system does not do what the demo asks for")]
    System(#[from] io::Error),
    #[error("the story cannot be told")]
    Output(#[from] OutputError),
    #[error("an object of the demo is no object")]
    Object(#[from] serde_json::Error),
}

impl From<steersman_cluster::Error> for StepError {
    fn from(error: steersman_cluster::Error) -> Self {
        Self::Server(Box::new(error))
    }
}

/// Fails unless this is so.
pub(crate) fn ensure(is_so: bool, what: impl fmt::Display) -> Result<(), StepError> {
    if is_so {
        return Ok(());
    }
    let what = what.to_string();
    Err(StepError::Untrue { what })
}

/// What a step tells.
pub(crate) struct Account {
    step: &'static str,
    view: Arc<View>,
}

impl Account {
    pub(crate) fn new(step: &'static str, view: Arc<View>) -> Self {
        Self { step, view }
    }

    /// Something happened.
    pub(crate) fn note(&self, text: impl fmt::Display) -> Result<(), StepError> {
        Ok(self.view.line(&format!("     {text}"))?)
    }

    /// Something came true, and took so long.
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
