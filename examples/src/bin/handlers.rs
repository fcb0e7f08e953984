// SPDX-License-Identifier: Apache-2.0
//! Runs the handlers of [`steersman_examples::handlers`] on the cluster that `KUBECONFIG` names, or in which it runs.
//!
//! ```text
//! cargo run -p steersman-examples --bin handlers
//! ```

use std::error::Error;

use steersman_examples::handlers;
use steersman_manager::{Logging, Manager};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    Logging::from_env().install()?;
    let manager = Manager::builder().build().await?;
    handlers::add(&manager).map_err(|error| error.to_string())?;
    Ok(manager.run().await?)
}
