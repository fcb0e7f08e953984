// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::dns`] on the cluster of `KUBECONFIG`, and a DNS service for it.
//!
//! ```text
//! cargo run -p steersman-examples --bin dns                       # with its own service
//! cargo run -p steersman-examples --bin dns -- 127.0.0.1:8053     # with the service at this address
//! ```

use std::env;

use steersman::prelude::*;
use steersman_examples::dns::{self, DnsApi, DnsService};

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let service = DnsService::start(([127, 0, 0, 1], 0).into())?;
    let address = env::args()
        .nth(1)
        .unwrap_or_else(|| service.address().to_string());
    tracing::info!(address, "using DNS service");
    let manager = Manager::builder().build().await?;
    dns::add(&manager, DnsApi::new(address))?;
    Ok(manager.run().await?)
}
