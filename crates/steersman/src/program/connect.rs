// SPDX-License-Identifier: Apache-2.0
//! Finds the cluster, and explains why it cannot be used.

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use steersman_cache::{InformerOptions, Scope};
use steersman_cluster::{BadKubeconfig, Cluster, ClusterName, ConnectError};

use super::{
    Program,
    args::{ConnectArgs, named},
};

/// The cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    #[error(
        "there is no cluster: set KUBECONFIG or pass --kubeconfig, or run in a Pod; `steersman serve` starts an API server for \
         experiments"
    )]
    None(#[source] ConnectError),
    #[error(
        "the cluster cannot be used: correct the kubeconfig, or name another file or context with --kubeconfig and --context"
    )]
    Kubeconfig(#[source] BadKubeconfig),
    #[error(
        "the API server at {server} does not answer: start it, or choose another one with --kubeconfig or --context"
    )]
    Unreachable {
        server: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(
        "the API server at {server} rejects the credentials: renew them, or choose others with --kubeconfig or --context"
    )]
    Unauthorized { server: String },
}

/// Connects to the cluster that the flags or the environment name. Sends no request.
pub(super) async fn connect(program: &Program, args: &ConnectArgs) -> Result<Cluster, ClusterError> {
    if let Some(cluster) = &program.cluster {
        return Ok(cluster.clone());
    }
    let namespaces = named(&args.watch_namespace);
    let scope = namespaces.iter().fold(Scope::all(), Scope::namespace);
    let builder = Cluster::builder(ClusterName::default())
        .field_manager(program.name)
        .cache(|cache| cache.defaults(scope, InformerOptions::default()));
    let builder = match config(args).await? {
        Some(config) => builder.config(config),
        None => builder,
    };
    builder.build().await.map_err(ClusterError::None)
}

/// Reads the kubeconfig, if a flag names the file or the context.
async fn config(args: &ConnectArgs) -> Result<Option<Config>, ClusterError> {
    let read = match (&args.kubeconfig, &args.context) {
        (Some(path), _) => Kubeconfig::read_from(path),
        (None, Some(_)) => Kubeconfig::read(),
        (None, None) => return Ok(None),
    };
    let bad = |error| ClusterError::Kubeconfig(BadKubeconfig::from(error));
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(read.map_err(bad)?, &options).await;
    Ok(Some(config.map_err(bad)?))
}

/// Checks that the server answers and accepts the credentials. Returns its version.
pub(super) async fn reach(cluster: &Cluster) -> Result<String, ClusterError> {
    let server = cluster.config().map_or_else(
        || cluster.name().to_string(),
        |config| config.cluster_url.to_string(),
    );
    match cluster.live().kube().apiserver_version().await {
        Ok(version) => Ok(version.git_version),
        Err(kube::Error::Api(status)) if status.code == 401 => Err(ClusterError::Unauthorized { server }),
        Err(source) => Err(ClusterError::Unreachable {
            server,
            source: Box::new(source),
        }),
    }
}
