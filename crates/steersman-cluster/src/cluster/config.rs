// SPDX-License-Identifier: Apache-2.0
//! Where the configuration of a cluster comes from when nobody gives one.

use kube::{
    Config,
    config::{InClusterError, KubeConfigOptions, KubeconfigError},
};

/// Nobody says which cluster is meant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// The file that `KUBECONFIG` names is of no use. Going to another cluster than the one that somebody names would be
    /// worse than going nowhere.
    #[error("the configuration that KUBECONFIG names is of no use")]
    Explicit(#[source] Box<KubeconfigError>),
    /// There is no configuration.
    #[error(
        "no cluster is configured: set KUBECONFIG, run in a Pod ({in_cluster}) or have a ~/.kube/config ({file})"
    )]
    None {
        /// What is missing of a Pod.
        in_cluster: Box<InClusterError>,
        /// What is wrong with the file.
        file: Box<KubeconfigError>,
    },
}

/// What `KUBECONFIG` says; else, in a Pod, its service account; else `~/.kube/config`. That is the order of
/// controller-runtime: what somebody says explicitly counts also in a Pod.
pub(super) async fn infer() -> Result<Config, InferError> {
    let is_explicit = std::env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
    let from_file = async || {
        let file = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
        file.map_err(Box::new)
    };
    let mut config = if is_explicit {
        from_file().await.map_err(InferError::Explicit)?
    } else {
        match Config::incluster() {
            Ok(config) => config,
            Err(error) => from_file().await.map_err(|file| InferError::None {
                in_cluster: Box::new(error),
                file,
            })?,
        }
    };
    config.apply_debug_overrides();
    Ok(config)
}
