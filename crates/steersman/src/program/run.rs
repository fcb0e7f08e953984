// SPDX-License-Identifier: Apache-2.0
//! Runs the operator.

use std::future::Future;

use steersman_cluster::Cluster;
use steersman_core::ObjectKey;
use steersman_endpoints::{MetricsServer, Tls};
use steersman_runtime::{Election, LogHandle, LogLevel, Manager, ManagerBuilder, send_reviews};

use super::{
    Program,
    args::{RunArgs, named},
    connect, crds,
};
use crate::Error;

/// A name that no controller has.
#[derive(Debug, thiserror::Error)]
#[error("unknown controller `{name}` in --disable-controllers: the controllers are {}", known.join(", "))]
struct UnknownController {
    name: String,
    known: Vec<String>,
}

pub(super) async fn run(
    program: Program,
    args: RunArgs,
    logs: Option<LogHandle>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let disabled = named(&args.disable_controllers);
    if !program.has_other_runnables {
        known(&disabled, &program.controllers)?;
    }
    let cluster = connect::connect(&program, &args.connect).await?;
    let version = connect::reach(&cluster).await?;
    tracing::info!(program = program.name, version, "connected to API server");
    let policy = args.crd_policy.unwrap_or(program.crd_policy);
    crds::enforce(policy, &program.crds, &cluster, program.name).await?;
    let settings = Manager::builder()
        .cluster(cluster.clone())
        .field_manager(program.name)
        .disable(disabled)
        .shutdown_timeout(args.shutdown_timeout());
    let settings = endpoints(settings, &args, &cluster)?;
    let settings = match args.leader_elect {
        true => settings.leader_election(election(&program, &args)),
        false => settings,
    };
    let configured = program
        .manager
        .into_iter()
        .fold(settings, |settings, set| set(settings));
    let manager = configured.build().await?;
    if let (Some(logs), Some(namespace)) = (logs, &args.connect.namespace) {
        let settings = ObjectKey::new(namespace, program.name);
        manager.add(LogLevel::new(logs, cluster, settings))?;
    }
    for setup in program.setups {
        setup(&manager)?;
    }
    Ok(Box::pin(manager.run_until(stop)).await?)
}

fn known(disabled: &[String], controllers: &[String]) -> Result<(), UnknownController> {
    match disabled.iter().find(|name| !controllers.contains(name)) {
        Some(name) => Err(UnknownController {
            name: name.clone(),
            known: controllers.to_vec(),
        }),
        None => Ok(()),
    }
}

fn election(program: &Program, args: &RunArgs) -> Election {
    let election = Election::new(program.name);
    match &args.connect.namespace {
        Some(namespace) => election.namespace(namespace),
        None => election,
    }
}

/// Serves probes and metrics. Metrics that other machines reach have TLS and authorization.
fn endpoints(settings: ManagerBuilder, args: &RunArgs, cluster: &Cluster) -> Result<ManagerBuilder, Error> {
    let settings = match args.health_address {
        Some(address) => settings.health(address),
        None => settings,
    };
    let Some(address) = args.metrics_address else {
        return Ok(settings);
    };
    if args.metrics_insecure || address.ip().is_loopback() {
        return Ok(settings.metrics(move |server: MetricsServer| server.address(address).insecure()));
    }
    let (tls, reviews) = (Tls::self_signed()?, send_reviews(cluster.live().kube()));
    Ok(settings.metrics(move |server| server.address(address).tls(tls).authorize(reviews)))
}
