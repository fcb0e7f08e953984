// SPDX-License-Identifier: Apache-2.0
//! Runs controllers, and has what their process needs besides: signals and logs. Probes and metrics are served by
//! `steersman-endpoints`.
//!
//! * [`Manager`] starts everything in order, keeps it running, and stops it in order.
//! * [`Election`] says which of several replicas acts.
//! * [`Signals`] turns the first SIGTERM into a future and the second into the end of the process.
//! * [`Logging`] sets up log lines, and changes what is logged while the program runs; [`LogLevel`] does so as a ConfigMap
//!   says.
//!
//! Nothing here is global but what the process has only one of: its signal handlers and its log.

mod disable;
mod election;
mod fatal;
mod log_level;
mod logging;
mod manager;
mod reviews;
mod signals;
mod supervise;

pub use disable::disabled_by_args;
pub use election::{Election, ElectionError, OnLoss};
pub use fatal::Fatal;
pub use log_level::LogLevel;
pub use logging::{FilterError, LogFormat, LogHandle, Logging, LoggingError};
pub use manager::{Addresses, BuildError, Manager, ManagerBuilder, RemoveError, RunError};
pub use reviews::send_reviews;
pub use signals::{InstallError, Signal, Signals};
