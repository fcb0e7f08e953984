// SPDX-License-Identifier: Apache-2.0
//! Command line of a program.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use steersman_manifests::{Image, Values};
use steersman_runtime::LogFormat;

use super::CrdPolicy;

const AFTER_HELP: &str = "\
Environment:
  KUBECONFIG       files that name the cluster; without it, the cluster of the Pod, then ~/.kube/config
  WATCH_NAMESPACE  default of --watch-namespace
  POD_NAMESPACE    default of --namespace
  RUST_LOG         log filter, such as `info,steersman=debug`; default: info
  NO_COLOR         turns colours of log lines off";

/// A Kubernetes operator. Without a command it runs.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Runs the operator until SIGTERM or SIGINT (default)
    Run(Box<RunArgs>),
    /// Prints the CRDs
    Crds,
    /// Prints service account, roles and bindings
    Rbac(ManifestArgs),
    /// Prints all objects that run the operator in a cluster, or writes a kustomize base
    Manifests(ManifestArgs),
    /// Writes a Helm chart
    Helm(HelmArgs),
    /// Checks the cluster: connection, CRDs, permissions
    Check(ConnectArgs),
    /// Deletes all objects of the operator's CRDs, waits for their cleanup, and deletes the CRDs
    Uninstall(UninstallArgs),
}

/// How to find the cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ConnectArgs {
    /// File that names the cluster, instead of the environment
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Namespaces in which the operator works, with commas between several; all if empty
    #[arg(
        long,
        env = "WATCH_NAMESPACE",
        value_name = "NAMES",
        value_delimiter = ',',
        hide_env = true
    )]
    pub(super) watch_namespace: Vec<String>,
    /// Namespace in which the operator runs: that of its lease and its ConfigMap
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", hide_env = true)]
    pub(super) namespace: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    /// Elects one of several replicas, which alone acts
    #[arg(long)]
    pub(super) leader_elect: bool,
    /// Address of `/healthz` and `/readyz`, such as 0.0.0.0:8081; not served without it
    #[arg(long, value_name = "ADDRESS")]
    pub(super) health_address: Option<SocketAddr>,
    /// Address of `/metrics`, such as 0.0.0.0:8443; not served without it. An address that other machines reach has TLS and
    /// authorization
    #[arg(long, value_name = "ADDRESS")]
    pub(super) metrics_address: Option<SocketAddr>,
    /// Serves `/metrics` without TLS and authorization
    #[arg(long)]
    pub(super) metrics_insecure: bool,
    /// Controllers that do not run, with commas between several
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) disable_controllers: Vec<String>,
    /// Time in seconds that work in flight has to end at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(super) shutdown_timeout: u64,
    /// Treatment of the CRDs at start
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(super) crd_policy: Option<CrdPolicy>,
    /// Format of log lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatArg::Auto)]
    log_format: LogFormatArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormatArg {
    /// Text on a terminal, JSON elsewhere
    #[default]
    Auto,
    /// Text, for people
    Text,
    /// JSON, for programs
    Json,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManifestArgs {
    /// Namespace of the operator; default: its name
    #[arg(long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// Directory for a kustomize base and an overlay; without it, YAML is printed
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    values: ValueArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct HelmArgs {
    /// Directory of the chart
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) output: PathBuf,
    #[command(flatten)]
    values: ValueArgs,
}

#[derive(Debug, clap::Args)]
struct ValueArgs {
    /// Container image; default: the name of the program
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Number of replicas
    #[arg(long, value_name = "NUMBER", default_value_t = Values::default().replicas)]
    replicas: u32,
    /// Namespaces in which the operator works, with commas between several; all if empty
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    watch_namespace: Vec<String>,
    /// Adds a ServiceMonitor; requires the CRDs of the Prometheus operator
    #[arg(long)]
    service_monitor: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    pub(super) connect: ConnectArgs,
    /// Deletes; without it, the command only prints what it would delete
    #[arg(long)]
    pub(super) yes: bool,
    /// Time in seconds that the cleanup of all objects has
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) timeout: u64,
}

impl Args {
    pub(super) fn into_command(self) -> Command {
        self.command.unwrap_or_else(|| Command::Run(Box::new(self.run)))
    }

    pub(super) fn log_format(&self) -> LogFormat {
        let format = match &self.command {
            Some(Command::Run(run)) => run.log_format,
            Some(_) => LogFormatArg::Auto,
            None => self.run.log_format,
        };
        match format {
            LogFormatArg::Auto => LogFormat::Auto,
            LogFormatArg::Text => LogFormat::Text,
            LogFormatArg::Json => LogFormat::Json,
        }
    }
}

impl RunArgs {
    pub(super) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout)
    }
}

impl ManifestArgs {
    pub(super) fn values(&self, program: &str) -> Values {
        self.values.values(program)
    }
}

impl HelmArgs {
    pub(super) fn values(&self, program: &str) -> Values {
        self.values.values(program)
    }
}

impl ValueArgs {
    fn values(&self, program: &str) -> Values {
        let mut values = Values::default();
        values.image = Image::parse(self.image.as_deref().unwrap_or(program));
        values.replicas = self.replicas;
        values.watch_namespaces = named(&self.watch_namespace);
        values.service_monitor = self.service_monitor;
        values
    }
}

/// Returns the names that are not empty.
pub(super) fn named(names: &[String]) -> Vec<String> {
    let names = names.iter().map(|name| name.trim());
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}
