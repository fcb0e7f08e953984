// SPDX-License-Identifier: Apache-2.0
//! Runs controllers, and has what their process needs besides: probes, metrics, signals and logs.
//!
//! * [`Manager`] starts everything in order, keeps it running, and stops it in order.
//! * [`Election`] says which of several replicas acts.
//! * [`Checks`] answers `/healthz` and `/readyz` as Kubernetes' own components do.
//! * [`MetricsRegistry`] holds what is measured, [`MetricsServer`] shows it to those who may see it.
//! * [`Server`] puts [`Routes`] on a socket, and ends with its last connection.
//! * [`Signals`] turns the first SIGTERM into a future and the second into the end of the process.
//! * [`Logging`] sets up log lines, and changes what is logged while the program runs; [`LogLevel`] does so as a ConfigMap
//!   says.
//!
//! Nothing here is global but what the process has only one of: its signal handlers and its log.

mod disable;
mod election;
mod fatal;
mod health;
mod log_level;
mod logging;
mod manager;
mod metrics;
mod registered;
mod serve;
mod signals;
mod supervise;

pub use disable::disabled_by_args;
pub use election::{Election, ElectionError, OnLoss};
pub use fatal::Fatal;
pub use health::{Checks, Duplicate, Unready};
pub use log_level::LogLevel;
pub use logging::{FilterError, LogFormat, LogHandle, Logging, LoggingError};
pub use manager::{Addresses, BuildError, Manager, ManagerBuilder, RemoveError, RunError};
pub use metrics::{Exposition, MetricsRegistry, MetricsServer, MetricsServerError};
pub use registered::Registered;
pub use serve::{
    BindError, BoxError, Handler, Request, Response, RouteError, Routes, ServeError, Server, Tls, TlsError,
};
pub use signals::{InstallError, Signal, Signals};

/// The version of `prometheus-client` whose types [`MetricsRegistry`] takes.
pub use prometheus_client;
