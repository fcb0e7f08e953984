// SPDX-License-Identifier: Apache-2.0
//! Conditions: the guarantees of `src/conditions.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use proptest::{collection::vec, prelude::*, sample::select};
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_kit::{
    ConditionSet, ConditionStatus, Conditions, NoStatus, ObservedAt, Status, StatusFor, lint_status,
};

#[derive(ConditionSet, Clone, Copy, Debug, PartialEq, Eq)]
enum Cond {
    Available,
    #[condition(name = "example.com/Registered")]
    Registered,
    #[condition(negative)]
    Degraded,
    #[condition(informational)]
    UpToDate,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
#[conditions(summary = "Succeeded")]
enum Batch {
    Copied,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
#[conditions(no_summary, crate = "steersman_kit")]
enum Part {
    Scanned,
}

#[derive(ConditionSet, Clone, Copy, Debug)]
#[conditions(kstatus)]
enum Kstatus {
    Available,
}

/// The part of the status of a Deployment that a controller of ours sets.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
#[status(of(Deployment), crate = "::steersman_kit")]
struct DeploymentPart {
    conditions: Conditions<Part>,
}

fn at(generation: i64, second: i64) -> ObservedAt {
    ObservedAt::new(Some(generation), Timestamp::from_second(second).unwrap())
}

fn status_of<S>(conditions: &Conditions<S>, name: &str) -> String {
    conditions.named(name).unwrap().status.clone()
}

/// The object as a client sees it, for the lint.
fn object<S>(conditions: &Conditions<S>, generation: i64) -> serde_json::Value {
    json!({
        "metadata": {"generation": generation},
        "status": {"observedGeneration": generation, "conditions": conditions},
    })
}

// R106
#[test]
fn guarantee_1_declared_conditions_are_unknown_until_they_are_set() {
    let mut conditions = Conditions::<Cond>::default();
    conditions.initialise(at(1, 0));
    let found: Vec<_> = conditions.iter().map(|one| (&*one.type_, &*one.status)).collect();
    let names = ["Available", "example.com/Registered", "Degraded", "UpToDate"];
    assert_eq!(found, names.map(|name| (name, "Unknown")));
}

// R176
#[test]
fn guarantee_1_conditions_that_are_set_survive_initialisation() {
    let mut conditions = Conditions::<Cond>::default();
    conditions.set_false(
        Cond::Available,
        "NotOwned",
        "it belongs to another controller",
        at(1, 5),
    );
    let before = conditions.get(Cond::Available).cloned();
    conditions.initialise(at(2, 9));
    assert_eq!(conditions.get(Cond::Available).cloned(), before);
    assert_eq!(conditions.status(Cond::UpToDate), ConditionStatus::Unknown);
}

#[test]
fn guarantee_2_the_time_is_cut_to_seconds_and_survives_the_wire() {
    let time = Timestamp::from_millisecond(1_500).unwrap();
    let mut conditions = Conditions::<Cond>::default();
    conditions.set_true(Cond::Available, ObservedAt::new(Some(1), time));
    let wire = serde_json::to_value(&conditions).unwrap();
    assert_eq!(wire[0]["lastTransitionTime"], "1970-01-01T00:00:01Z");
    assert_eq!(
        serde_json::from_value::<Conditions<Cond>>(wire).unwrap(),
        conditions
    );
}

#[test]
fn guarantee_3_the_summary_has_reason_and_message_of_the_first_bad_condition() {
    let mut conditions = Conditions::<Cond>::default();
    conditions.set_unknown(Cond::Available, "InProgress", "0 of 1", at(1, 0));
    conditions.set_false(Cond::Registered, "Refused", "no such account", at(1, 0));
    conditions.set(Cond::Degraded, ConditionStatus::True, "Slow", "", at(1, 0));
    conditions.set_false(Cond::UpToDate, "Old", "", at(1, 0));
    conditions.summarise(at(1, 0));
    let ready = conditions.summary().unwrap();
    let found = (&*ready.status, &*ready.reason, &*ready.message);
    assert_eq!(
        found,
        ("False", "Refused", "example.com/Registered: no such account")
    );

    conditions.set_true(Cond::Registered, at(1, 1));
    conditions.summarise(at(1, 1));
    let ready = conditions.summary().unwrap();
    assert_eq!((&*ready.status, &*ready.message), ("False", "Degraded"));

    conditions.set_false(Cond::Degraded, "Fast", "", at(1, 2));
    conditions.summarise(at(1, 2));
    let ready = conditions.summary().unwrap();
    assert_eq!((&*ready.status, &*ready.reason), ("Unknown", "InProgress"));

    conditions.set_true(Cond::Available, at(1, 3));
    conditions.summarise(at(1, 3));
    let ready = conditions.summary().unwrap();
    assert_eq!((&*ready.status, &*ready.reason), ("True", "AllConditionsMet"));
    assert!(conditions.is_ready(Some(1)));
    assert!(!conditions.is_ready(Some(2)), "the summary is about generation 1");
}

#[test]
fn guarantee_3_a_set_names_its_summary_or_has_none() {
    let mut batch = Conditions::<Batch>::default();
    batch.set_true(Batch::Copied, at(1, 0));
    batch.summarise(at(1, 0));
    assert_eq!(status_of(&batch, "Succeeded"), "True");
    let mut part = Conditions::<Part>::default();
    part.set_true(Part::Scanned, at(1, 0));
    part.summarise(at(1, 0));
    assert_eq!(part.iter().count(), 1);
    assert!(part.summary().is_none());
}

#[test]
fn guarantee_4_a_condition_about_a_former_generation_becomes_unknown() {
    let mut conditions = Conditions::<Cond>::default();
    for condition in [Cond::Available, Cond::Registered, Cond::UpToDate] {
        conditions.set_true(condition, at(1, 0));
    }
    conditions.set_false(Cond::Degraded, "Fast", "", at(1, 0));
    conditions.summarise(at(1, 0));
    assert!(conditions.is_ready(Some(1)));

    conditions.initialise(at(2, 5));
    conditions.set_true(Cond::Available, at(2, 5));
    conditions.summarise(at(2, 5));
    assert_eq!(conditions.status(Cond::Available), ConditionStatus::True);
    for condition in [Cond::Registered, Cond::Degraded, Cond::UpToDate] {
        let found = conditions.get(condition).unwrap();
        assert_eq!((&*found.status, &*found.reason), ("Unknown", "NotObserved"));
        assert_eq!(found.observed_generation, Some(2));
    }
    assert_eq!(conditions.summary().unwrap().status, "Unknown");
}

#[test]
fn guarantee_4_a_condition_of_the_same_or_a_newer_generation_keeps_its_value() {
    let mut conditions = Conditions::<Batch>::default();
    conditions.set_true(Batch::Copied, at(3, 0));
    for generation in [3, 2] {
        conditions.summarise(at(generation, 9));
        assert_eq!(conditions.status(Batch::Copied), ConditionStatus::True);
    }
    // Kinds without generations have nothing to compare.
    conditions.summarise(ObservedAt::new(None, Timestamp::from_second(9).unwrap()));
    assert_eq!(conditions.status(Batch::Copied), ConditionStatus::True);
}

#[test]
fn guarantee_5_conditions_of_other_controllers_stay_as_they_are() {
    let foreign = json!({
        "type": "Scanned", "status": "True", "reason": "Done", "message": "by another controller",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let mut conditions: Conditions<Cond> = serde_json::from_value(json!([foreign])).unwrap();
    conditions.initialise(at(7, 0));
    conditions.summarise(at(7, 0));
    let wire = serde_json::to_value(&conditions).unwrap();
    assert!(wire.as_array().unwrap().contains(&foreign), "{wire}");

    conditions.retain_own();
    let names: Vec<_> = conditions.iter().map(|one| &*one.type_).collect();
    assert_eq!(
        names,
        [
            "Ready",
            "Available",
            "example.com/Registered",
            "Degraded",
            "UpToDate"
        ]
    );
}

#[test]
fn guarantee_6_conditions_are_valid_for_metav1() {
    let mut conditions = Conditions::<Cond>::default();
    conditions.set_true(Cond::Registered, at(1, 0));
    conditions.set_false(Cond::Available, "404 not found!", &"ä".repeat(40_000), at(1, 0));
    conditions.set_false(Cond::Degraded, "", "", at(1, 0));
    conditions.summarise(at(1, 0));
    assert_eq!(lint_status(&object(&conditions, 1)), []);
    assert_eq!(conditions.get(Cond::Available).unwrap().reason, "notFound");
    assert_eq!(conditions.get(Cond::Registered).unwrap().reason, "Registered");
}

#[test]
fn guarantee_7_equality_does_not_depend_on_the_order() {
    let mut conditions = Conditions::<Cond>::default();
    conditions.summarise(at(1, 0));
    let mut wire = serde_json::to_value(&conditions).unwrap();
    wire.as_array_mut().unwrap().reverse();
    let mut read: Conditions<Cond> = serde_json::from_value(wire).unwrap();
    assert_eq!(read, conditions);
    read.retain_own();
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        serde_json::to_value(&conditions).unwrap()
    );
    read.set_true(Cond::Available, at(1, 0));
    assert_ne!(read, conditions);
}

#[test]
fn guarantee_8_kstatus_conditions_follow_the_summary() {
    let mut conditions = Conditions::<Kstatus>::default();
    let types = |conditions: &Conditions<Kstatus>| -> Vec<String> {
        assert_eq!(lint_status(&object(conditions, 1)), []);
        conditions.iter().map(|one| one.type_.clone()).collect()
    };
    conditions.summarise(at(1, 0));
    assert_eq!(types(&conditions), ["Ready", "Available", "Reconciling"]);
    let since = conditions
        .named("Reconciling")
        .unwrap()
        .last_transition_time
        .clone();

    conditions.set_false(Kstatus::Available, "NoQuota", "quota exceeded", at(1, 4));
    conditions.summarise(at(1, 4));
    let reconciling = conditions.named("Reconciling").unwrap();
    assert_eq!(
        (&reconciling.last_transition_time, &*reconciling.reason),
        (&since, "NoQuota")
    );

    conditions.set_stalled("InvalidSpec", "spec.size is negative");
    conditions.summarise(at(1, 5));
    assert_eq!(types(&conditions), ["Ready", "Available", "Stalled"]);

    conditions.set_true(Kstatus::Available, at(1, 6));
    conditions.summarise(at(1, 6));
    assert_eq!(
        types(&conditions),
        ["Ready", "Available"],
        "a stall lasts for one reconcile"
    );
}

#[test]
fn a_null_list_is_empty_and_a_condition_without_a_time_is_an_error() {
    assert_eq!(
        serde_json::from_value::<Conditions<Cond>>(json!(null))
            .unwrap()
            .iter()
            .count(),
        0
    );
    let broken = json!([{"type": "Available", "status": "True"}]);
    assert!(serde_json::from_value::<Conditions<Cond>>(broken).is_err());
}

#[test]
fn a_status_can_be_a_part_of_the_status_of_a_kind_of_kubernetes() {
    fn own_types<K, S: StatusFor<K>>(mut status: S) -> Vec<String> {
        status.conditions_mut().summarise(at(1, 0));
        status.conditions().iter().map(|one| one.type_.clone()).collect()
    }
    assert_eq!(own_types::<Deployment, _>(DeploymentPart::default()), ["Scanned"]);
    assert_eq!(own_types::<Deployment, _>(NoStatus::default()), [""; 0]);
}

/// One step of a controller.
#[derive(Clone, Copy, Debug)]
enum Step {
    Set(usize, ConditionStatus),
    Initialise,
    Summarise,
}

fn steps() -> impl Strategy<Value = Vec<(Step, i64)>> {
    let status = select(vec![
        ConditionStatus::True,
        ConditionStatus::False,
        ConditionStatus::Unknown,
    ]);
    let step = prop_oneof![
        3 => (0..Cond::ALL.len(), status).prop_map(|(which, status)| Step::Set(which, status)),
        1 => Just(Step::Initialise),
        1 => Just(Step::Summarise),
    ];
    vec((step, 0_i64..3), 0..40)
}

fn take(conditions: &mut Conditions<Cond>, step: Step, at: ObservedAt) {
    match step {
        Step::Set(which, status) => conditions.set(Cond::ALL[which], status, "Because", "", at),
        Step::Initialise => conditions.initialise(at),
        Step::Summarise => conditions.summarise(at),
    }
}

/// The summary, as the documentation says it.
fn expected_summary(conditions: &Conditions<Cond>) -> &'static str {
    use ConditionStatus::{False, True, Unknown};
    let registered = conditions.status(Cond::Registered);
    let available = conditions.status(Cond::Available);
    let degraded = conditions.status(Cond::Degraded);
    if registered == False || available == False || degraded == True {
        "False"
    } else if [registered, available, degraded].contains(&Unknown) {
        "Unknown"
    } else {
        "True"
    }
}

fn by_type(conditions: &Conditions<Cond>) -> BTreeMap<String, Condition> {
    conditions
        .iter()
        .map(|one| (one.type_.clone(), one.clone()))
        .collect()
}

proptest! {
    #[test]
    fn guarantee_2_transition_times_change_only_with_the_status(steps in steps()) {
        let mut conditions = Conditions::<Cond>::default();
        let mut generation = 1;
        for (second, (step, more)) in (1_i64..).zip(steps) {
            generation += more / 2;
            let before = by_type(&conditions);
            take(&mut conditions, step, at(generation, second));
            for (name, now) in by_type(&conditions) {
                let is_new = before.get(&name).is_none_or(|old| old.status != now.status);
                let changed = now.last_transition_time.0.as_second() == second;
                prop_assert_eq!(is_new, changed, "{}", name);
            }
        }
    }

    #[test]
    fn guarantee_3_the_summary_depends_on_the_declared_conditions_alone(steps in steps()) {
        let mut conditions = Conditions::<Cond>::default();
        let mut generation = 1;
        for (second, (step, more)) in (1_i64..).zip(steps) {
            generation += more / 2;
            take(&mut conditions, step, at(generation, second));
        }
        conditions.summarise(at(generation, 1_000));
        prop_assert_eq!(status_of(&conditions, "Ready"), expected_summary(&conditions));
        prop_assert_eq!(lint_status(&object(&conditions, generation)), []);
        let again = serde_json::to_value(&conditions).unwrap();
        conditions.summarise(at(generation, 2_000));
        prop_assert_eq!(serde_json::to_value(&conditions).unwrap(), again, "a second summary changes nothing");
    }

    #[test]
    fn guarantee_5_no_step_changes_the_conditions_of_others(steps in steps(), names in vec("[A-Z][a-z]{1,8}", 0..4)) {
        let foreign: BTreeMap<_, _> = names.iter().map(|name| (format!("other.dev/{name}"), json!({
            "type": format!("other.dev/{name}"), "status": "False", "reason": "Theirs", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        }))).collect();
        let list: Vec<_> = foreign.values().collect();
        let mut conditions: Conditions<Cond> = serde_json::from_value(json!(list)).unwrap();
        for (second, (step, more)) in (1_i64..).zip(steps) {
            take(&mut conditions, step, at(1 + more, second));
        }
        for one in foreign.values() {
            let found = conditions.named(one["type"].as_str().unwrap()).unwrap();
            prop_assert_eq!(&serde_json::to_value(found).unwrap(), one);
        }
    }
}
