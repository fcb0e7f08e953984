// SPDX-License-Identifier: Apache-2.0
//! Runs [`steersman_examples::certificates`], which writes the host names of certificates. Run it twice, install or
//! remove cert-manager, and stop one of the two.
//!
//! ```text
//! cargo run -p steersman-examples --bin certificates -- NAMESPACE    # where the lease of the replicas is
//! ```

use steersman::{prelude::*, runtime::Election};
use steersman_examples::certificates;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let Some(namespace) = std::env::args().nth(1) else {
        return Err("name the namespace that has the lease of the replicas".into());
    };
    let election = Election::new("certificates-example").namespace(namespace);
    let manager = Manager::builder().leader_election(election).build().await?;
    certificates::add(&manager)?;
    Ok(manager.run().await?)
}
