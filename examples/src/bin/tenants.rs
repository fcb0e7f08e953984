// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::tenants`] on the cluster of `KUBECONFIG`, or the one that it runs in.

use steersman::runtime::{Election, Logging, MainError, Manager};
use steersman_examples::tenants;

#[tokio::main]
async fn main() -> Result<(), MainError> {
    Logging::from_env().install()?;
    let manager = Manager::builder()
        .leader_election(Election::new("tenant-operator").namespace("default"))
        .build()
        .await?;
    tenants::add(&manager)?;
    Ok(manager.run().await?)
}
