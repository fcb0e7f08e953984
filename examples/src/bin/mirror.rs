// SPDX-License-Identifier: Apache-2.0
//! Runs [`steersman_examples::mirror`], which copies the Secrets of one cluster to another.
//!
//! ```text
//! cargo run -p steersman-examples --bin mirror -- REFERENCE MIRROR    # two contexts of your kubeconfig
//! ```

use std::env;

use steersman::{
    kube::config::{Config, KubeConfigOptions},
    prelude::*,
};
use steersman_examples::mirror;

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    Logging::from_env().install()?;
    let mut contexts = env::args().skip(1);
    let (Some(reference), Some(copy)) = (contexts.next(), contexts.next()) else {
        return Err(
            "name two contexts of your kubeconfig: that of the reference and that of the mirror".into(),
        );
    };
    let copy = cluster(copy).await?;
    let manager = Manager::builder()
        .cluster(cluster(reference).await?)
        .cluster(copy.clone())
        .build()
        .await?;
    mirror::add(&manager, &copy)?;
    Ok(manager.run().await?)
}

async fn cluster(context: String) -> Result<Cluster, steersman::Error> {
    let options = KubeConfigOptions {
        context: Some(context.clone()),
        ..KubeConfigOptions::default()
    };
    let config = Config::from_kubeconfig(&options).await?;
    Ok(Cluster::builder(context).config(config).build().await?)
}
