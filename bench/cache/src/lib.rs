// SPDX-License-Identifier: Apache-2.0
//! Shared by the participants.

use std::{error::Error, sync::Arc};

use kube::Config;
use steersman_cache::InformerContext;
use steersman_core::{Random, Spawner, TokioClock};

/// The surroundings of an informer that runs on this thread's runtime, as that of a `Cluster` does on its own.
///
/// # Errors
/// When there is no configuration.
pub async fn surroundings() -> Result<InformerContext, Box<dyn Error>> {
    let client = steersman_cache::client(&Config::infer().await?)?;
    let clock = Arc::new(TokioClock::new());
    Ok(InformerContext::new(
        client,
        clock,
        Arc::new(Random::from_seed(1)),
        Spawner::current(),
    ))
}
