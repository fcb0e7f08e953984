// SPDX-License-Identifier: Apache-2.0
//! Where the configuration of a cluster comes from when nobody gives one.

use kube::{
    Config,
    config::{InClusterError, KubeConfigOptions, KubeconfigError},
};

/// Neither the environment nor a file says which cluster is meant.
#[derive(Debug, thiserror::Error)]
#[error(
    "no cluster is configured: not by KUBECONFIG or ~/.kube/config ({kubeconfig}), not as in a Pod ({in_cluster})"
)]
#[non_exhaustive]
pub struct InferError {
    /// What is wrong with the file.
    pub kubeconfig: Box<KubeconfigError>,
    /// What is missing of a Pod.
    pub in_cluster: Box<InClusterError>,
}

/// What `KUBECONFIG` says; else, in a Pod, its service account; else `~/.kube/config`. That is the order of
/// controller-runtime: what somebody says explicitly counts also in a Pod.
pub(super) async fn infer() -> Result<Config, InferError> {
    let is_explicit = std::env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
    let in_cluster = Config::incluster();
    let mut config = match in_cluster {
        Ok(config) if !is_explicit => config,
        in_cluster => {
            let file = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
            match (file, in_cluster) {
                (Ok(config), _) => config,
                // An explicit file that is of no use is no reason to go elsewhere, but in a Pod there is one more.
                (Err(error), Ok(config)) => {
                    tracing::warn!(%error, "KUBECONFIG is of no use; going on as in a Pod");
                    config
                }
                (Err(kubeconfig), Err(in_cluster)) => {
                    return Err(InferError {
                        kubeconfig: Box::new(kubeconfig),
                        in_cluster: Box::new(in_cluster),
                    });
                }
            }
        }
    };
    config.apply_debug_overrides();
    Ok(config)
}
