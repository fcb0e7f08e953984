// SPDX-License-Identifier: Apache-2.0
//! Runs the handlers of [`steersman_examples::handlers`] on the cluster that `KUBECONFIG` names, or in which it runs.
//!
//! ```text
//! cargo run -p steersman-examples --bin handlers
//! ```

use steersman_examples::handlers;
use steersman_runtime::{Logging, MainError, Manager};

#[tokio::main]
async fn main() -> Result<(), MainError> {
    Logging::from_env().install()?;
    let manager = Manager::builder().build().await?;
    handlers::add(&manager)?;
    Ok(manager.run().await?)
}
