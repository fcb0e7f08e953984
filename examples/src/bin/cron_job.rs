// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::cron_job`] on the cluster of `KUBECONFIG`, or the one that it runs in.

use steersman::runtime::{Election, Logging, MainError, Manager};
use steersman_examples::cron_job;

#[tokio::main]
async fn main() -> Result<(), MainError> {
    Logging::from_env().install()?;
    let manager = Manager::builder()
        .leader_election(Election::new("cron-job-operator").namespace("default"))
        .build()
        .await?;
    cron_job::add(&manager)?;
    Ok(manager.run().await?)
}
