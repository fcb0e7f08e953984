// SPDX-License-Identifier: Apache-2.0
//! Readiness by the rules of kstatus: the guarantees of `src/readiness.rs`.

use proptest::prelude::*;
use serde_json::{Value, json};
use steersman_kit::{Readiness, readiness};

/// Returns `Ready`, `Terminating`, or the reason with `…` in progress or `!` failed.
fn short(group: &str, kind: &str, object: &Value) -> String {
    match readiness(group, kind, object) {
        Readiness::Ready => "Ready".to_owned(),
        Readiness::InProgress { reason, .. } => format!("{reason}…"),
        Readiness::Failed { reason, .. } => format!("{reason}!"),
        Readiness::Terminating => "Terminating".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn check(group: &str, kind: &str, table: &[(Value, &str)]) {
    for (object, expected) in table {
        assert_eq!(short(group, kind, object), *expected, "{kind} {object}");
    }
}

fn condition(name: &str, status: &str, reason: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": "m"})
}

#[test]
fn guarantee_1_an_object_under_deletion_is_terminating() {
    let object = json!({
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"conditions": [condition("Ready", "True", "Ok")]},
    });
    for (group, kind) in [("apps", "Deployment"), ("", "Pod"), ("example.com", "Widget")] {
        assert_eq!(readiness(group, kind, &object), Readiness::Terminating);
    }
}

#[test]
fn guarantee_2_a_status_of_a_former_generation_is_in_progress() {
    let object = json!({
        "metadata": {"generation": 3},
        "status": {"observedGeneration": 2, "conditions": [condition("Ready", "True", "Ok")]},
    });
    let expected = Readiness::in_progress(
        "LatestGenerationNotObserved",
        "generation is 3, but the observed generation is 2",
    );
    assert_eq!(readiness("example.com", "Widget", &object), expected);
    assert_eq!(readiness("policy", "PodDisruptionBudget", &object), expected);
}

#[test]
fn guarantee_3_reconciling_and_stalled_count_for_every_kind() {
    let with = |name: &str, status: &str| json!({"status": {"conditions": [condition(name, status, "Why")]}});
    check(
        "example.com",
        "Widget",
        &[
            (with("Reconciling", "True"), "Why…"),
            (with("Stalled", "True"), "Why!"),
            (with("Reconciling", "False"), "Ready"),
            (with("Stalled", "Unknown"), "Ready"),
        ],
    );
    check("", "ConfigMap", &[(with("Stalled", "True"), "Why!")]);
}

fn deployment(counts: [i64; 4], conditions: &[Value]) -> Value {
    let [replicas, updated, available, ready] = counts;
    json!({
        "metadata": {"generation": 1},
        "spec": {"replicas": 2, "progressDeadlineSeconds": 600},
        "status": {
            "observedGeneration": 1, "replicas": replicas, "updatedReplicas": updated,
            "availableReplicas": available, "readyReplicas": ready, "conditions": conditions,
        },
    })
}

#[test]
fn guarantee_4_deployments() {
    let rolled_out = condition("Progressing", "True", "NewReplicaSetAvailable");
    let available = condition("Available", "True", "MinimumReplicasAvailable");
    let both = [rolled_out.clone(), available.clone()];
    let exceeded = condition("Progressing", "False", "ProgressDeadlineExceeded");
    let mut without_deadline = deployment([2, 2, 2, 2], &[available]);
    without_deadline["spec"]["progressDeadlineSeconds"] = json!(i32::MAX);
    let none =
        json!({"spec": {"replicas": 0}, "status": {"conditions": [condition("Available", "True", "Ok")]}});
    check(
        "apps",
        "Deployment",
        &[
            (json!({"spec": {"replicas": 2}}), "LessReplicas…"),
            (deployment([1, 1, 1, 1], &both), "LessReplicas…"),
            (deployment([2, 1, 1, 2], &both), "LessUpdated…"),
            (deployment([3, 2, 2, 3], &both), "ExtraPods…"),
            (deployment([2, 2, 1, 2], &both), "LessAvailable…"),
            (deployment([2, 2, 2, 1], &both), "LessReady…"),
            (deployment([2, 2, 2, 2], &[]), "ReplicaSetNotAvailable…"),
            (deployment([2, 2, 2, 2], &[rolled_out]), "DeploymentNotAvailable…"),
            (deployment([2, 2, 2, 2], &[exceeded]), "ProgressDeadlineExceeded!"),
            (deployment([2, 2, 2, 2], &both), "Ready"),
            (without_deadline, "Ready"),
            (none, "Ready"),
        ],
    );
}

#[test]
fn guarantee_4_the_message_counts_the_replicas() {
    let found = readiness("apps", "Deployment", &deployment([1, 1, 1, 1], &[]));
    assert_eq!(
        found,
        Readiness::in_progress("LessReplicas", "1 of 2 replicas are created")
    );
}

#[test]
fn guarantee_4_stateful_sets() {
    let set = |status: Value| json!({"spec": {"replicas": 2}, "status": status});
    let full = json!({
        "replicas": 2, "readyReplicas": 2, "currentReplicas": 2, "updatedReplicas": 2,
        "currentRevision": "a", "updateRevision": "a",
    });
    let change = |field: &str, value: Value| {
        let mut status = full.clone();
        status[field] = value;
        set(status)
    };
    let mut partition = set(json!({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 1}));
    partition["spec"]["updateStrategy"] = json!({"rollingUpdate": {"partition": 1}});
    let mut rollout = partition.clone();
    rollout["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(0);
    let mut manual = set(json!({}));
    manual["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    check(
        "apps",
        "StatefulSet",
        &[
            (set(json!({})), "LessReplicas…"),
            (change("readyReplicas", json!(1)), "LessReady…"),
            (change("replicas", json!(3)), "ExtraPods…"),
            (change("currentReplicas", json!(1)), "LessCurrent…"),
            (change("updateRevision", json!("b")), "RevisionMismatch…"),
            (partition, "Ready"),
            (rollout, "PartitionRollout…"),
            (manual, "Ready"),
            (set(full.clone()), "Ready"),
        ],
    );
}

#[test]
fn guarantee_4_daemon_sets() {
    let set = |scheduled: i64, updated: i64, available: i64, ready: i64| {
        json!({
            "metadata": {"generation": 1},
            "status": {
                "observedGeneration": 1, "desiredNumberScheduled": 2, "currentNumberScheduled": scheduled,
                "updatedNumberScheduled": updated, "numberAvailable": available, "numberReady": ready,
            },
        })
    };
    let unseen = json!({"metadata": {"generation": 1}});
    let unknown = json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1}});
    check(
        "apps",
        "DaemonSet",
        &[
            (unseen, "NoObservedGeneration…"),
            (unknown, "NoDesiredNumber…"),
            (set(1, 1, 1, 1), "LessCurrent…"),
            (set(2, 1, 1, 1), "LessUpdated…"),
            (set(2, 2, 1, 1), "LessAvailable…"),
            (set(2, 2, 2, 1), "LessReady…"),
            (set(2, 2, 2, 2), "Ready"),
        ],
    );
}

#[test]
fn guarantee_4_replica_sets() {
    let set = |labelled: i64, available: i64, ready: i64, all: i64| {
        json!({
            "spec": {"replicas": 2},
            "status": {
                "fullyLabeledReplicas": labelled, "availableReplicas": available, "readyReplicas": ready, "replicas": all,
            },
        })
    };
    let mut failing = set(2, 2, 2, 2);
    failing["status"]["conditions"] = json!([condition("ReplicaFailure", "True", "FailedCreate")]);
    check(
        "apps",
        "ReplicaSet",
        &[
            (set(1, 1, 1, 1), "LessLabelled…"),
            (set(2, 1, 1, 2), "LessAvailable…"),
            (set(2, 2, 1, 2), "LessReady…"),
            (set(2, 2, 2, 3), "ExtraPods…"),
            (failing, "ReplicaFailure…"),
            (set(2, 2, 2, 2), "Ready"),
        ],
    );
}

#[test]
fn guarantee_4_pods() {
    let pod = |phase: &str, conditions: Value| json!({"status": {"phase": phase, "conditions": conditions}});
    let crashing = json!({
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "a", "state": {"running": {}}},
                {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ],
        },
    });
    let evicted = json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "no disk"}});
    check(
        "",
        "Pod",
        &[
            (json!({}), "PodNotObserved…"),
            (pod("Pending", json!([])), "PodPending…"),
            (
                pod(
                    "Pending",
                    json!([condition("PodScheduled", "False", "Unschedulable")]),
                ),
                "PodNotScheduled…",
            ),
            (
                pod("Running", json!([condition("Ready", "False", "No")])),
                "PodRunningNotReady…",
            ),
            (
                pod("Running", json!([condition("Ready", "True", "Yes")])),
                "Ready",
            ),
            (crashing, "ContainerCrashLooping!"),
            (pod("Succeeded", json!([])), "Ready"),
            (pod("Failed", json!([])), "PodFailed!"),
            (evicted, "Evicted!"),
            (pod("Unheard", json!([])), "PodPhaseUnknown…"),
        ],
    );
}

#[test]
fn guarantee_4_jobs() {
    let job = |status: Value| json!({"spec": {"suspend": true}, "status": status});
    let with = |name: &str| job(json!({"conditions": [condition(name, "True", "Why")], "failed": 3}));
    check(
        "batch",
        "Job",
        &[
            (job(json!({})), "JobNotStarted…"),
            (job(json!({"startTime": "2026-01-01T00:00:00Z"})), "Ready"),
            (with("Complete"), "Ready"),
            (with("Failed"), "JobFailed!"),
            (with("Suspended"), "Ready"),
        ],
    );
}

#[test]
fn guarantee_4_claims_services_and_definitions() {
    let claim = |phase: &str| json!({"status": {"phase": phase}});
    check(
        "",
        "PersistentVolumeClaim",
        &[
            (json!({}), "NotBound…"),
            (claim("Pending"), "NotBound…"),
            (claim("Bound"), "Ready"),
        ],
    );
    check(
        "",
        "Service",
        &[
            (json!({}), "Ready"),
            (json!({"spec": {"type": "LoadBalancer"}}), "NoIPAssigned…"),
            (
                json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}}),
                "Ready",
            ),
        ],
    );
    let crd = |conditions: Value| json!({"status": {"conditions": conditions}});
    check(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &[
            (json!({}), "Installing…"),
            (
                crd(json!([condition("Established", "False", "Installing")])),
                "Installing…",
            ),
            (
                crd(json!([condition("NamesAccepted", "False", "Conflict")])),
                "Conflict!",
            ),
            (
                crd(json!([condition("Established", "False", "NotAccepted")])),
                "NotAccepted!",
            ),
            (crd(json!([condition("Established", "True", "Ok")])), "Ready"),
        ],
    );
}

#[test]
fn guarantee_5_other_kinds_are_ready_by_their_condition_or_without_one() {
    let widget = |status: &str| json!({"status": {"conditions": [condition("Ready", status, "Why")]}});
    check(
        "example.com",
        "Widget",
        &[
            (json!({}), "Ready"),
            (
                json!({"status": {"conditions": [condition("Other", "False", "Why")]}}),
                "Ready",
            ),
            (widget("True"), "Ready"),
            (widget("False"), "Why…"),
            (widget("Unknown"), "Why…"),
        ],
    );
    // A kind of another group is not the one of Kubernetes.
    check(
        "example.com",
        "Deployment",
        &[(json!({"spec": {"replicas": 2}}), "Ready")],
    );
}

/// JSON with the names that the rules read, and values of every type.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(True|Ready|Running|Failed|Progressing|Stalled|)".prop_map(Value::from),
    ];
    let name =
        "(metadata|spec|status|conditions|replicas|generation|observedGeneration|phase|type|reason|state)";
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name, inner, 0..6)
                .prop_map(|map| Value::from(serde_json::Map::from_iter(map))),
        ]
    })
}

proptest! {
    #[test]
    fn guarantee_6_no_data_causes_a_panic(object in anything()) {
        for (group, kind) in [
            ("apps", "Deployment"), ("apps", "StatefulSet"), ("apps", "DaemonSet"), ("apps", "ReplicaSet"), ("batch", "Job"),
            ("", "Pod"), ("", "PersistentVolumeClaim"), ("", "Service"), ("policy", "PodDisruptionBudget"),
            ("apiextensions.k8s.io", "CustomResourceDefinition"), ("example.com", "Widget"),
        ] {
            let _ = readiness(group, kind, &object);
        }
        let _ = steersman_kit::lint_status(&object);
        let _ = steersman_kit::lint_status_change(&object, &json!({}));
    }
}
