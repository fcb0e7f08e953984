// SPDX-License-Identifier: Apache-2.0
//! A lint for the status of objects: the conventions of metav1 conditions and of kstatus. Tests run it on every object.
//!
//! # Guarantees
//! 1. [`lint_status`] finds a status without `observedGeneration`, and one that is newer than the object.
//! 2. [`lint_status`] finds conditions that metav1 does not allow: duplicate types, and invalid statuses, reasons, messages and
//!    times.
//! 3. [`lint_status`] finds contradictions of kstatus: `Ready=True` for a former generation or with `Reconciling=True`, and
//!    `Reconciling` or `Stalled` that is present but not `True`.
//! 4. [`lint_status_change`] finds a transition time that changed without a change of the status, or moved back with it, and an
//!    observed generation that decreased.
//! 5. An object without a status has no findings. Malformed data never causes a panic.
//!
//! # Example
//! ```
//! use serde_json::json;
//! use steersman_kit::lint_status;
//!
//! let object = json!({"metadata": {"generation": 2}, "status": {"replicas": 1}});
//! let findings = lint_status(&object);
//! assert_eq!(
//!     findings[0].to_string(),
//!     "status.observedGeneration: is missing; add `observed_generation: Option<i64>` to the status"
//! );
//! ```

use std::{collections::HashSet, fmt};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Longest reason and message of metav1, in characters.
const REASON_LENGTH_MAX: usize = 1024;
const MESSAGE_LENGTH_MAX: usize = 32768;

/// A violation of a convention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintFinding {
    path: String,
    problem: String,
}

impl LintFinding {
    fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }

    /// Returns the path of the field, such as `status.conditions[Ready].reason`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for LintFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

/// Returns the violations in the status of an object.
#[must_use]
pub fn lint_status(object: &Value) -> Vec<LintFinding> {
    let Some(status) = object.get("status").and_then(Value::as_object) else {
        return Vec::new();
    };
    if status.is_empty() {
        return Vec::new();
    }
    let generation = number(object, "/metadata/generation");
    let mut findings: Vec<_> = observed_generation(object, generation).into_iter().collect();
    let conditions = match status.get("conditions") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(conditions)) => conditions,
        Some(_) => {
            findings.push(LintFinding::new("status.conditions", "is not a list"));
            return findings;
        }
    };
    let mut seen = HashSet::new();
    for condition in conditions {
        let name = text(condition, "type");
        if name.is_empty() {
            findings.push(LintFinding::new(
                "status.conditions",
                "has a condition without a type",
            ));
        } else if !seen.insert(name) {
            findings.push(LintFinding::new(path(name, "type"), "occurs more than once"));
        }
        findings.extend(shape(condition, generation));
    }
    findings.extend(contradictions(
        conditions,
        number(object, "/status/observedGeneration"),
    ));
    findings
}

/// Returns the violations in a change of the status of one object, from `before` to `after`.
#[must_use]
pub fn lint_status_change(before: &Value, after: &Value) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    let observed = |object| number(object, "/status/observedGeneration");
    if observed(after) < observed(before) {
        findings.push(LintFinding::new("status.observedGeneration", "decreased"));
    }
    let list = |object: &'_ Value| -> Vec<Value> {
        let found = object.pointer("/status/conditions").and_then(Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let olds = list(before);
    for new in list(after) {
        let name = text(&new, "type");
        let Some(old) = olds.iter().find(|old| text(old, "type") == name) else {
            continue;
        };
        let has_new_status = text(old, "status") != text(&new, "status");
        let (then, now) = (time(old), time(&new));
        if !has_new_status && then != now {
            let problem = "changed, but the status did not";
            findings.push(LintFinding::new(path(name, "lastTransitionTime"), problem));
        }
        if has_new_status && now < then {
            findings.push(LintFinding::new(path(name, "lastTransitionTime"), "moved back"));
        }
    }
    findings
}

fn observed_generation(object: &Value, generation: Option<i64>) -> Option<LintFinding> {
    let generation = generation?;
    let problem = match number(object, "/status/observedGeneration") {
        None => "is missing; add `observed_generation: Option<i64>` to the status".to_owned(),
        Some(observed) if observed > generation => {
            format!("is {observed}, but the generation of the object is {generation}")
        }
        Some(_) => return None,
    };
    Some(LintFinding::new("status.observedGeneration", problem))
}

/// Returns what metav1 does not allow in one condition.
fn shape(condition: &Value, generation: Option<i64>) -> Vec<LintFinding> {
    let name = text(condition, "type");
    let mut findings = Vec::new();
    let mut complain =
        |field: &str, problem: &str| findings.push(LintFinding::new(path(name, field), problem));
    if !matches!(text(condition, "status"), "True" | "False" | "Unknown") {
        complain("status", "is not `True`, `False` or `Unknown`");
    }
    let reason = text(condition, "reason");
    if !is_reason(reason) {
        complain(
            "reason",
            "is not a word of letters, digits, `_`, `,` and `:` that begins with a letter",
        );
    }
    if reason.chars().count() > REASON_LENGTH_MAX {
        complain("reason", "has more than 1024 characters");
    }
    match condition.get("message").and_then(Value::as_str) {
        None => complain("message", "is missing"),
        Some(message) if message.chars().count() > MESSAGE_LENGTH_MAX => {
            complain("message", "has more than 32768 characters");
        }
        Some(_) => {}
    }
    if time(condition).is_none() {
        complain("lastTransitionTime", "is not a time");
    }
    if number(condition, "/observedGeneration") > generation && generation.is_some() {
        complain("observedGeneration", "is newer than the object");
    }
    findings
}

/// Returns what contradicts the conventions of kstatus.
fn contradictions(conditions: &[Value], observed: Option<i64>) -> Vec<LintFinding> {
    let find = |name: &str| {
        conditions
            .iter()
            .find(|condition| text(condition, "type") == name)
    };
    let is_true = |name: &str| find(name).is_some_and(|condition| text(condition, "status") == "True");
    let mut findings = Vec::new();
    for name in ["Reconciling", "Stalled"] {
        if find(name).is_some() && !is_true(name) {
            let problem = "is not `True`; remove the condition instead";
            findings.push(LintFinding::new(path(name, "status"), problem));
        }
    }
    if is_true("Reconciling") && is_true("Stalled") {
        findings.push(LintFinding::new(
            "status.conditions",
            "has both `Reconciling` and `Stalled`",
        ));
    }
    if is_true("Ready") && is_true("Reconciling") {
        findings.push(LintFinding::new(
            "status.conditions",
            "has both `Ready` and `Reconciling`",
        ));
    }
    let ready = find("Ready").filter(|_| is_true("Ready"));
    let ready_for = ready.and_then(|ready| number(ready, "/observedGeneration"));
    if ready_for.is_some() && ready_for < observed {
        let problem = "is older than `status.observedGeneration`, but the condition is `True`";
        findings.push(LintFinding::new(path("Ready", "observedGeneration"), problem));
    }
    findings
}

fn path(condition: &str, field: &str) -> String {
    format!("status.conditions[{condition}].{field}")
}

fn is_reason(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ',' | ':'))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer)?.as_i64()
}

fn time(condition: &Value) -> Option<Timestamp> {
    text(condition, "lastTransitionTime").parse().ok()
}
