// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::web`] on the cluster that `KUBECONFIG` names, or in which it runs.
//!
//! ```text
//! cargo run -p steersman-examples --bin web -- --crd | kubectl apply -f -
//! cargo run -p steersman-examples --bin web
//! ```

use std::io::Write;

use kube::CustomResourceExt;
use steersman_examples::web::{self, Web};
use steersman_manager::{Fatal, Logging, Manager, disabled_by_args};

#[tokio::main]
async fn main() -> Result<(), Fatal> {
    if std::env::args().any(|argument| argument == "--crd") {
        let definition = serde_json::to_string_pretty(&Web::crd())?;
        return Ok(writeln!(std::io::stdout(), "{definition}")?);
    }
    Logging::from_env().install()?;
    let manager = Manager::builder()
        .disable(disabled_by_args(std::env::args()))
        .build()
        .await?;
    web::add(&manager)?;
    Ok(manager.run().await?)
}
