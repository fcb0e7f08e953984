// SPDX-License-Identifier: Apache-2.0
//! The words that every operator uses.

pub use steersman_cache::{Index, Query, Resource};
pub use steersman_cluster::{Client, Cluster, ClusterName, EventType};
pub use steersman_core::{Action, ObjectKey};
pub use steersman_runtime::{
    BoxError, Condition, Conditional, Context, Controller, Needs, ObjectReconciler, Reconciler, Request,
    RunContext, Runnable, dynamic, generation_changed, kind, metadata, projection, reconcile_fn, related,
    related_header, run_fn, terminal,
};
pub use steersman_runtime::{Logging, Manager};
