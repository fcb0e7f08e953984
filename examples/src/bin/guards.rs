// SPDX-License-Identifier: Apache-2.0
//! Runs [`steersman_examples::guards`], which keeps locked objects of a kind. Install and remove the CRD meanwhile.
//!
//! ```text
//! cargo run -p steersman-examples --bin guards -- example.com v1 Widget widgets    # group, version, kind, plural
//! ```

use std::env;

use steersman::{cache::Resource, prelude::*};
use steersman_examples::guards;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [group, version, kind, plural] = &arguments[..] else {
        return Err(
            "name a group, a version, a kind and its plural, such as: example.com v1 Widget widgets".into(),
        );
    };
    let manager = Manager::builder().build().await?;
    guards::add(&manager, Resource::new(group, version, kind, plural))?;
    Ok(manager.run().await?)
}
