// SPDX-License-Identifier: Apache-2.0
//! The names that every operator uses. Import them with `use steersman::prelude::*`. None of them is also a name of `kube`.

pub use steersman_cache::{Index, Query};
pub use steersman_cluster::{Cluster, ClusterName, Error as ClientError, EventType, ObjectExt};
pub use steersman_core::{Action, ObjectKey};
pub use steersman_kit::{
    Cleaned, Cleanup, ConditionSet, Conditions, Defaults, KindReconciler, NoCleanup, NoStatus, Optional,
    RunsCleanup, Status, Work, managed,
};
pub use steersman_runtime::{
    BoxError, Conditional, Context, Controller, Logging, Manager, ObjectReconciler, Reconciler, Request,
    RunCondition, RunContext, RunPolicy, Runnable, dynamic, generation_changed, kind, map_async, map_fn,
    map_metadata, metadata, projection, reconcile_fn, run_fn, terminal,
};
