// SPDX-License-Identifier: Apache-2.0
//! The `main` of an operator: flags, environment, logging, probes, metrics, election, signals, and subcommands.
//!
//! # Guarantees
//! 1. Without a subcommand, the program runs the operator until SIGTERM or SIGINT, as [`Manager::run`] does.
//! 2. `crds`, `rbac`, `manifests` and `helm` need no cluster. Their output follows from what is declared.
//! 3. An unknown name in `--disable-controllers` is an error that names the controllers, unless [`setup`](Program::setup) adds
//!    runnables that the program does not know.
//! 4. `uninstall` changes nothing without `--yes`. It deletes a CRD only after all its objects are gone, so that every finalizer
//!    was removed by its controller.

mod args;
mod check;
mod connect;
mod crds;
mod manifests;
mod run;
mod uninstall;

use std::{ffi::OsString, fmt, future::Future, io::Write, pin::pin};

use clap::{CommandFactory, FromArgMatches};
use kube::core::crd::CustomResourceExt;
use serde_json::Value;
use steersman_cluster::Cluster;
use steersman_core::Permission;
use steersman_kit::ChildKind;
use steersman_runtime::{
    AnyReconciler, BoxError, Builder, LogHandle, Logging, Manager, ManagerBuilder, Reconciles, RequestKey,
    Signals,
};

use self::args::{Args, Command};
pub use self::crds::CrdPolicy;
use crate::Error;

/// Begins the program of an operator. The name is that of its lease, field manager, ConfigMap and manifests; choose one that is
/// a valid name of an object.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # use steersman::{prelude::*, Error};
/// # async fn reconcile(_: Request, _: Context) -> Result<Action, BoxError> { Ok(Action::await_change()) }
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     steersman::program("maps")
///         .controller(Controller::of::<ConfigMap>("maps").workers(4), reconcile_fn(reconcile))
///         .run()
///         .await
/// }
/// ```
///
/// `maps` runs it; `maps --help` shows flags and subcommands: `crds`, `rbac`, `manifests` and `helm` print what a cluster needs,
/// `check` finds what is missing, `uninstall` removes the objects and the CRDs.
pub fn program(name: &'static str) -> Program {
    Program {
        name,
        version: None,
        crds: Vec::new(),
        controllers: Vec::new(),
        permissions: Vec::new(),
        setups: Vec::new(),
        has_other_runnables: false,
        manager: Vec::new(),
        cluster: None,
        crd_policy: CrdPolicy::default(),
    }
}

/// The program of an operator; from [`program`].
#[must_use = "a program runs with `run`"]
pub struct Program {
    name: &'static str,
    version: Option<&'static str>,
    crds: Vec<Value>,
    controllers: Vec<String>,
    permissions: Vec<Permission>,
    setups: Vec<Setup>,
    has_other_runnables: bool,
    manager: Vec<Configure>,
    cluster: Option<Cluster>,
    crd_policy: CrdPolicy,
}

type Setup = Box<dyn FnOnce(&Manager) -> Result<(), BoxError> + Send>;
type Configure = Box<dyn FnOnce(ManagerBuilder) -> ManagerBuilder + Send>;

impl Program {
    /// Adds a controller with its reconciler, as [`Builder::add_to`] does. Its permissions are part of the RBAC rules.
    pub fn controller<R, T, By>(
        mut self,
        controller: Builder<R, T>,
        reconciler: impl AnyReconciler<R, By>,
    ) -> Self
    where
        R: RequestKey,
        T: 'static,
        By: Reconciles<T> + 'static,
    {
        self.permissions.extend(controller.permissions(&reconciler));
        self.controllers.push(controller.name().to_owned());
        self.setups.push(Box::new(move |manager| {
            controller.add_to(manager, reconciler)?;
            Ok(())
        }));
        self
    }

    /// Adds the CRD of a kind, for `crds`, `manifests`, `helm`, `check` and the [policy](Self::crd_policy).
    pub fn crd<K: ChildKind + CustomResourceExt>(mut self) -> Self {
        self.crds.push(crds::to_json(&K::crd()));
        self
    }

    /// Calls a function with the manager before it runs, to add clusters and other runnables. Declare their permissions with
    /// [`permission`](Self::permission).
    pub fn setup(mut self, setup: impl FnOnce(&Manager) -> Result<(), BoxError> + Send + 'static) -> Self {
        self.has_other_runnables = true;
        self.setups.push(Box::new(setup));
        self
    }

    /// Declares a permission of code that is no controller. Controllers declare theirs with
    /// [`Builder::permits`](steersman_runtime::Builder::permits).
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permissions.push(permission);
        self
    }

    /// Changes settings of the manager, after those of the flags.
    pub fn manager(
        mut self,
        configure: impl FnOnce(ManagerBuilder) -> ManagerBuilder + Send + 'static,
    ) -> Self {
        self.manager.push(Box::new(configure));
        self
    }

    /// Uses this cluster instead of the one that flags and environment name, for example in a test. `--watch-namespace`
    /// has no effect on it.
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Sets what the program does about its CRDs when it starts. `--crd-policy` overrides it. Default: [`CrdPolicy::Check`].
    pub fn crd_policy(mut self, policy: CrdPolicy) -> Self {
        self.crd_policy = policy;
        self
    }

    /// Version of the program and of its Helm chart, such as `env!("CARGO_PKG_VERSION")`. Default: none; `0.1.0` in the chart.
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = Some(version);
        self
    }

    /// Runs the program with the arguments of the process, until SIGTERM or SIGINT. Installs logging and signal handlers.
    ///
    /// An invalid command line, `--help` and `--version` end the process.
    ///
    /// # Errors
    /// When the subcommand fails. The error names the cause and the next step.
    ///
    /// # Cancel safety
    /// Dropping the future cancels everything.
    pub async fn run(self) -> Result<(), Error> {
        let args = self
            .parse(std::env::args_os())
            .unwrap_or_else(|error| error.exit());
        let logs = Logging::from_env().format(args.log_format()).install()?;
        let mut signals = Signals::install()?;
        let stop = async move {
            let signal = signals.stop().await;
            tracing::info!(signal = signal.name(), "received signal; shutting down");
            // Leaked on purpose, so that a second signal is handled.
            std::mem::forget(signals);
        };
        let mut output = std::io::stdout();
        Box::pin(self.dispatch(args, Some(logs), &mut output, stop)).await
    }

    /// Runs the program with these arguments, of which the first is the name of the program, until `stop` completes. Writes the
    /// output of subcommands to `output`, and installs neither logging nor signal handlers. For tests.
    ///
    /// # Errors
    /// When the command line is invalid, or the subcommand fails.
    ///
    /// # Cancel safety
    /// Dropping the future cancels everything.
    pub async fn run_with<A: Into<OsString> + Clone>(
        self,
        arguments: impl IntoIterator<Item = A>,
        output: &mut (impl Write + Send),
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let args = self.parse(arguments)?;
        Box::pin(self.dispatch(args, None, output, stop)).await
    }

    /// Returns the permissions that the program needs: those of its controllers, and its own. Tests compare them with the
    /// requests of the program.
    #[must_use]
    pub fn permissions(&self) -> Vec<Permission> {
        let mut permissions = self.permissions.clone();
        permissions.extend(manifests::own_permissions(self));
        permissions
    }

    /// Returns the description from which manifests are computed.
    pub fn manifests(&self) -> steersman_manifests::Operator {
        let operator = steersman_manifests::Operator::new(self.name)
            .crds(self.crds.iter().cloned())
            .permissions(self.permissions());
        match self.version {
            Some(version) => operator.version(version),
            None => operator,
        }
    }

    /// Returns the definition of the command line, for completions, manual pages and tests.
    #[must_use]
    pub fn command(&self) -> clap::Command {
        let command = Args::command().name(self.name);
        match self.version {
            Some(version) => command.version(version),
            None => command,
        }
    }

    fn parse<A: Into<OsString> + Clone>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Args, clap::Error> {
        let matches = self.command().try_get_matches_from(arguments)?;
        Args::from_arg_matches(&matches)
    }

    async fn dispatch(
        self,
        args: Args,
        logs: Option<LogHandle>,
        output: &mut (impl Write + Send),
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        let stop = pin!(stop);
        match args.into_command() {
            Command::Run(args) => Box::pin(run::run(self, *args, logs, stop)).await,
            Command::Crds => Ok(write!(output, "{}", self.manifests().crds_yaml())?),
            Command::Rbac(args) => manifests::rbac(&self, &args, output),
            Command::Manifests(args) => manifests::manifests(&self, &args, output),
            Command::Helm(args) => manifests::helm(&self, &args, output),
            Command::Check(args) => check::check(&self, &args, output).await,
            Command::Uninstall(args) => Box::pin(uninstall::uninstall(self, args, output, stop)).await,
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name)
            .field("controllers", &self.controllers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        program("web").version("1.2.3").command().debug_assert();
    }

    #[test]
    fn the_manual_lists_exactly_the_flags_of_the_command_line() {
        let command = program("web").command();
        let own = command.get_arguments();
        let all = own.chain(command.get_subcommands().flat_map(clap::Command::get_arguments));
        let defined: BTreeSet<&str> = all.filter_map(clap::Arg::get_long).collect();
        let page = include_str!("manual/configuration.md");
        let is_flag = |letter: char| letter.is_ascii_lowercase() || letter == '-';
        let flags = page.split("`--").skip(1);
        let flags = flags.map(|rest| rest.split(|letter| !is_flag(letter)).next().unwrap_or_default());
        let listed: BTreeSet<&str> = flags.filter(|flag| *flag != "help").collect();
        assert_eq!(listed, defined);
        for variable in [
            "KUBECONFIG",
            "WATCH_NAMESPACE",
            "POD_NAMESPACE",
            "RUST_LOG",
            "NO_COLOR",
        ] {
            assert!(page.contains(&format!("| `{variable}` |")), "{variable}");
        }
    }
}
