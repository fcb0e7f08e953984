// SPDX-License-Identifier: Apache-2.0
//! Runs the handlers of [`steersman_examples::handlers`] on the cluster of `KUBECONFIG`, or the one that it runs in.
//!
//! ```text
//! cargo run -p steersman-examples --bin handlers
//! ```

use steersman::prelude::*;
use steersman_examples::handlers;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let manager = Manager::builder().build().await?;
    handlers::add(&manager)?;
    Ok(manager.run().await?)
}
