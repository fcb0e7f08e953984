// SPDX-License-Identifier: Apache-2.0
//! Controllers and the manager that runs them.
//!
//! * [`Controller`] watches kinds, turns their changes into keys, and calls a [`Reconciler`] for each key.
//! * [`Manager`] starts controllers and other [`Runnable`]s in order, keeps them running, and stops them in order.
//! * [`Election`] elects the one of several replicas that acts.
//! * [`RunCondition`] and [`Conditional`] run anything only while a condition holds: a CRD is installed, an object exists,
//!   or your own.
//! * [`Signals`] turns the first SIGTERM into a future; the second ends the process.
//! * [`Logging`] sets up log lines; [`LogLevel`] changes the level from a ConfigMap.
//! * [`LiveConfig`] reads settings again when their ConfigMap or file changes.
//!
//! ```text
//! Source ─▶ Predicate ─▶ Handler ─▶ Queue ─▶ worker ─▶ Reconciler
//! ```
//!
//! A [`Controller`] is a plan. [`Runnable::run`] runs it: sources enqueue the objects that exist and then every change.
//! Once all sources are in sync and this replica leads, workers take keys and call the [`Reconciler`]. A run ends when it
//! is stopped, and the same plan can run again. [`Controller::of`] begins a plan, [`Builder::add_to`] adds it to a
//! [`Manager`].

mod add_error;
mod builder;
mod cache_sync;
mod cached_reads;
mod cluster_session;
mod cluster_set;
mod conditional;
mod context;
mod controller;
mod declarations;
mod disable;
mod election;
mod gate;
mod handler;
mod hot_loop;
mod indexes;
mod kind;
mod leadership;
mod live_config;
mod log_level;
mod logging;
mod main_error;
mod manager;
mod metrics;
mod namespaced;
mod object_event;
mod object_reconciler;
mod one_map;
mod options;
mod owner;
mod permissions;
mod predicate;
mod reconciler;
mod references;
mod request;
mod reviews;
mod run;
mod run_condition;
mod run_context;
mod runnable;
mod signals;
mod source;
mod status;
mod stop;
mod supervise;
pub mod testing;
mod tracker;
mod undecodable;
mod worker;

pub use add_error::AddError;
pub use builder::{Builder, NoPrimary};
pub use cache_sync::CacheRequirement;
pub use cluster_set::DuplicateCluster;
pub use conditional::Conditional;
pub use context::Context;
pub use controller::{Controller, ControllerError, RunningController};
pub use declarations::Declarations;
pub use disable::disabled_by_args;
pub use election::{Election, ElectionError, LeaseLostPolicy};
pub use handler::{
    Enqueue, HandleFn, Handler, IntoRequest, LOW_PRIORITY, MapFn, MapMetadata, SameObject, handle_fn, map_fn,
    map_metadata, same_object,
};
pub use kind::{Kind, KnownKind, dynamic, kind, metadata, projection};
pub use leadership::{Leadership, Term};
pub use live_config::{ConfigSource, LiveConfig};
pub use log_level::LogLevel;
pub use logging::{FilterError, LogFormat, LogHandle, Logging, LoggingError};
pub use main_error::MainError;
pub use manager::{Addresses, BuildError, Manager, ManagerBuilder, RemoveError, RunError};
pub use metrics::Metrics;
pub use object_event::ObjectEvent;
#[doc(hidden)]
pub use object_reconciler::PrimaryKind;
pub use object_reconciler::{AnyReconciler, ByKey, ByObject, ObjectReconciler, Reconciles};
pub use options::Options;
pub use owner::{Owners, controller_of, owners_of};
pub use predicate::{
    Predicate, annotations_changed, deletion_began, generation_changed, labels_changed, object_is,
    resource_version_changed,
};
pub use reconciler::{
    BoxError, BoxReconciler, ReconcileFn, Reconciler, RetryAfter, Terminal, is_terminal, reconcile_fn,
    retry_after, terminal,
};
pub use references::{Reference, ReferenceFn};
pub use request::{Request, RequestKey};
pub use reviews::send_reviews;
pub use run_condition::RunCondition;
pub use run_context::RunContext;
pub use runnable::{RunFn, RunPolicy, Runnable, run_fn};
pub use signals::{InstallError, Signal, Signals};
#[doc(hidden)]
pub use source::AsyncMapping;
pub use source::{
    Channel, MapAsync, MapContext, Sender, Source, SourceContext, SourceState, Stream, Timer, channel, every,
    map_async, stream,
};
pub use status::{RunnableStatus, StatusRegistry};
pub use stop::{Stop, StopHandle};
pub use tracker::{Tracker, Tracking, TrackingHandler};
pub use undecodable::Undecodable;

pub(crate) use cache_sync::{CacheSync, NotSynced, run_synced};
pub(crate) use cluster_set::{ClusterRemoval, ClusterSet};
pub(crate) use leadership::LeadershipKeeper;
pub(crate) use run_context::RuntimeContext;
pub(crate) use runnable::BoxRunnable;
pub(crate) use status::StatusHandle;
