// SPDX-License-Identifier: Apache-2.0
//! Controllers: what they watch, how changes become keys, and who works on them.
//!
//! ```text
//! Source ─▶ Predicate ─▶ Handler ─▶ Queue ─▶ worker ─▶ Reconciler
//! ```
//!
//! A [`Controller`] is a plan. [`Runnable::run`] makes a run of it: sources enqueue what is there and then what changes;
//! once all have, and this replica may act, workers take keys and call the [`Reconciler`]. A run ends when it is told to,
//! and the same plan can be run again. [`Controller::of`] begins a plan, [`Builder::add_to`] gives it to a [`Host`].

mod builder;
mod cached_reads;
mod condition;
mod conditional;
mod context;
mod controller;
mod engagement;
mod filling;
mod fleet;
mod handler;
mod handlers;
mod host;
mod hot_loop;
mod kind;
mod leadership;
mod metrics;
mod namespaced;
mod object_reconciler;
mod occurrence;
mod options;
mod owner;
mod predicate;
mod reconciler;
mod request;
mod run;
mod run_context;
mod runnable;
mod source;
mod standing;
mod stop;
pub mod testing;
mod undecodable;
mod work;

pub use builder::{Builder, NoPrimary};
pub use condition::Condition;
pub use conditional::Conditional;
pub use context::Context;
pub use controller::{Controller, RunError, RunningController};
pub use filling::{Filling, Unfilled, Wanted, run_filled};
pub use fleet::{Departure, Fleet, NameTaken};
pub use handler::{
    Enqueue, HandleFn, Handler, IntoRequest, LOW_PRIORITY, Related, RelatedHeader, SameObject, handle_fn,
    related, related_header, same_object,
};
pub use handlers::{HandlerTaken, Handlers, Handling};
pub use host::{Host, HostError};
pub use kind::{Kind, KnownKind, dynamic, kind, metadata, projection};
pub use leadership::{Leadership, LeadershipKeeper, Term};
pub use metrics::Metrics;
pub use object_reconciler::{
    AnyReconciler, ByKey, ByObject, KnownPrimary, ObjectReconciler, PrimaryKind, Reconciles,
};
pub use occurrence::Occurrence;
pub use options::Options;
pub use owner::{Owners, controller_of, owners_of};
pub use predicate::{
    Predicate, annotations_changed, deletion_began, generation_changed, labels_changed, object_is,
    resource_version_changed,
};
pub use reconciler::{
    BoxError, BoxReconciler, ReconcileFn, Reconciler, RetryAfter, Terminal, reconcile_fn, retry_after,
    terminal,
};
pub use request::{Request, RequestKey};
pub use run_context::{RunContext, RunSurroundings};
pub use runnable::{BoxRunnable, Needs, RunFn, Runnable, run_fn};
pub use source::{
    Channel, Sender, Source, SourceContext, SourceState, Stream, Timer, channel, every, stream,
};
pub use standing::{Place, Standing, Standings};
pub use stop::{Stop, StopHandle};
pub use undecodable::Undecodable;
