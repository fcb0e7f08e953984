// SPDX-License-Identifier: Apache-2.0
//! Runs [`steersman_examples::tags`], which labels all objects of a kind.
//!
//! ```text
//! cargo run -p steersman-examples --bin tags -- apps Deployment front    # group (or ""), kind, team
//! ```

use std::env;

use steersman::prelude::*;
use steersman_examples::tags;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let mut arguments = env::args().skip(1);
    let (Some(group), Some(kind), Some(team)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("name a group, a kind and a team, such as: apps Deployment front".into());
    };
    let manager = Manager::builder().build().await?;
    let resource = tags::find(&manager.cluster()?, &group, &kind).await?;
    tags::add(&manager, &resource, &team)?;
    Ok(manager.run().await?)
}
