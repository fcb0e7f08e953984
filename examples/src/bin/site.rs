// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::site`] on the cluster of `KUBECONFIG`, or the one that it runs in.
//!
//! ```text
//! cargo run -p steersman-examples --bin site -- --crd | kubectl apply -f -
//! cargo run -p steersman-examples --bin site
//! ```

use std::{env, io::Write};

use steersman::{
    prelude::*,
    runtime::{Election, disabled_by_args},
};
use steersman_examples::site;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    if env::args().any(|argument| argument == "--crd") {
        let definitions =
            serde_json::json!({"apiVersion": "v1", "kind": "List", "items": site::definitions()});
        return Ok(writeln!(std::io::stdout(), "{definitions:#}")?);
    }
    Logging::from_env().install()?;
    // Replicas elect a leader.
    let namespace = env::var("POD_NAMESPACE").unwrap_or_else(|_| "default".to_owned());
    let manager = Manager::builder()
        .leader_election(Election::new(site::LEASE).namespace(namespace))
        .disable(disabled_by_args(env::args()))
        .build()
        .await?;
    site::run(&manager).await
}
