// SPDX-License-Identifier: Apache-2.0
//! The lint for statuses: the guarantees of `src/lint.rs`.

use serde_json::{Value, json};
use steersman_kit::{LintFinding, lint_status, lint_status_change};

fn texts(findings: &[LintFinding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

fn condition(name: &str, status: &str) -> Value {
    json!({
        "type": name, "status": status, "reason": "Because", "message": "", "observedGeneration": 2,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn object(conditions: &[Value]) -> Value {
    json!({
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, "conditions": conditions},
    })
}

fn paths(object: &Value) -> Vec<String> {
    lint_status(object)
        .iter()
        .map(|finding| finding.path().to_owned())
        .collect()
}

#[test]
fn a_status_that_follows_the_conventions_has_no_findings() {
    assert_eq!(
        lint_status(&object(&[
            condition("Ready", "True"),
            condition("Available", "True")
        ])),
        []
    );
    assert_eq!(
        lint_status(&object(&[
            condition("Ready", "False"),
            condition("Reconciling", "True")
        ])),
        []
    );
}

#[test]
fn guarantee_1_the_observed_generation_is_present_and_not_from_the_future() {
    let status = |status: Value| json!({"metadata": {"generation": 2}, "status": status});
    assert_eq!(
        paths(&status(json!({"replicas": 1}))),
        ["status.observedGeneration"]
    );
    assert_eq!(
        texts(&lint_status(&status(json!({"observedGeneration": 3})))),
        ["status.observedGeneration: is 3, but the generation of the object is 2"]
    );
    assert_eq!(
        paths(&status(json!({"observedGeneration": 1}))),
        Vec::<String>::new()
    );
}

#[test]
fn guarantee_2_every_field_of_a_condition_is_checked() {
    for (field, value) in [
        ("status", json!("true")),
        ("reason", json!("")),
        ("reason", json!("not a word")),
        ("reason", json!("Trailing:")),
        ("reason", json!("A".repeat(1025))),
        ("message", Value::Null),
        ("message", json!("m".repeat(32_769))),
        ("lastTransitionTime", json!("yesterday")),
        ("lastTransitionTime", Value::Null),
        ("observedGeneration", json!(3)),
    ] {
        let mut broken = condition("Available", "True");
        broken[field] = value;
        let expected = format!("status.conditions[Available].{field}");
        assert_eq!(paths(&object(&[broken])), [expected]);
    }
    let twice = [condition("Available", "True"), condition("Available", "False")];
    assert_eq!(paths(&object(&twice)), ["status.conditions[Available].type"]);
    assert_eq!(paths(&object(&[condition("", "True")])), ["status.conditions"]);
    let map = json!({"status": {"conditions": {"Ready": "True"}}});
    assert_eq!(paths(&map), ["status.conditions"]);
}

#[test]
fn guarantee_3_contradictions_of_kstatus_are_found() {
    let ready = condition("Ready", "True");
    let mut stale = ready.clone();
    stale["observedGeneration"] = json!(1);
    assert_eq!(
        paths(&object(&[stale])),
        ["status.conditions[Ready].observedGeneration"]
    );
    assert_eq!(
        paths(&object(&[ready, condition("Reconciling", "True")])),
        ["status.conditions"]
    );
    let both = [condition("Stalled", "True"), condition("Reconciling", "True")];
    assert_eq!(paths(&object(&both)), ["status.conditions"]);
    for name in ["Stalled", "Reconciling"] {
        let expected = format!("status.conditions[{name}].status");
        assert_eq!(paths(&object(&[condition(name, "False")])), [expected]);
    }
}

#[test]
fn guarantee_4_transition_times_change_with_the_status_only() {
    let at = |status: &str, time: &str| {
        let mut one = condition("Ready", status);
        one["lastTransitionTime"] = json!(time);
        object(&[one])
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
    let change = |before: &Value, after: &Value| texts(&lint_status_change(before, after));
    assert_eq!(
        change(&at("True", early), &at("True", early)),
        Vec::<String>::new()
    );
    assert_eq!(
        change(&at("True", early), &at("False", late)),
        Vec::<String>::new()
    );
    assert_eq!(
        change(&at("True", early), &at("True", late)),
        ["status.conditions[Ready].lastTransitionTime: changed, but the status did not"]
    );
    assert_eq!(
        change(&at("True", late), &at("False", early)),
        ["status.conditions[Ready].lastTransitionTime: moved back"]
    );
    let mut former = at("True", early);
    former["status"]["observedGeneration"] = json!(1);
    assert_eq!(
        change(&at("True", early), &former),
        ["status.observedGeneration: decreased"]
    );
}

#[test]
fn guarantee_5_an_object_without_a_status_has_no_findings() {
    for object in [
        json!({}),
        json!({"metadata": {"generation": 1}, "status": {}}),
        json!({"status": null}),
    ] {
        assert_eq!(lint_status(&object), []);
    }
}
