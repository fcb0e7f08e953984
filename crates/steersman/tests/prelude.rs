// SPDX-License-Identifier: Apache-2.0
//! The prelude beside the glob imports of `kube`: a name that both had would be ambiguous, and this would not compile.

#![allow(unused_imports, reason = "the names are compared, not used")]

use kube::{prelude::*, *};
use steersman::prelude::*;

/// Uses every type and trait of the prelude.
#[allow(dead_code, reason = "it is compiled, not called")]
fn names<O: ObjectExt, K, R: Reconciler + Runnable + ObjectReconciler<K>>(
    _: (Index<String>, Query, Cluster, ClusterName, ClientError, EventType),
    _: (Action, ObjectKey, BoxError, Context, Controller, Logging, Manager),
    _: (Request, RunCondition, RunContext, RunPolicy, Conditional),
    _: (O, K, R),
) {
}

/// Names of `kube` that operators use.
#[allow(dead_code, reason = "it is compiled, not called")]
fn names_of_kube<K: Resource + ResourceExt>(_: (Client, Config, Option<Api<K>>, Option<Error>)) {}

#[test]
fn has_no_name_of_kube() {
    let objects = kind::<steersman::k8s_openapi::api::core::v1::ConfigMap>().when(generation_changed());
    assert_eq!(objects.resource().plural(), "configmaps");
    assert!(terminal("never").to_string().starts_with("terminal"));
    let _ = (dynamic, run_fn_exists(), reconcile_fn_exists());
}

fn run_fn_exists() -> &'static str {
    let nothing = run_fn("nothing", async |_: RunContext| Ok::<(), BoxError>(()));
    let _ = nothing;
    "run_fn"
}

fn reconcile_fn_exists() -> &'static str {
    let nothing = reconcile_fn(|_: Request, _: steersman::runtime::Context| async {
        Ok::<_, BoxError>(Action::await_change())
    });
    let _ = nothing;
    "reconcile_fn"
}
