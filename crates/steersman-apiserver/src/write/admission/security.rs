// SPDX-License-Identifier: Apache-2.0
//! The admission plugin `PodSecurity`: enforces the security level that the labels of a namespace select.

mod checks;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::forbidden;
use crate::{
    handler::Target,
    resource::at,
    state::Context,
    status::{Failure, FieldError, Result},
    store::{Object, metadata_of},
};

const PREFIX: &str = "pod-security.kubernetes.io/";

/// Maximum number of Pods that are checked when the level of a namespace changes.
const PODS_MAX: usize = 3000;

/// Pod Security levels, from most to least permissive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A level as defined in one version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standard {
    level: Level,
    /// The minor version; `None` for the latest.
    minor: Option<u32>,
}

impl std::fmt::Display for Standard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.minor {
            None => write!(f, "{}:latest", self.level.name()),
            Some(minor) => write!(f, "{}:v1.{minor}", self.level.name()),
        }
    }
}

/// The Pod Security standards of a namespace. The server writes no audit log, so the audit mode has no effect.
#[derive(Clone, Copy, Debug)]
struct Policy {
    enforce: Standard,
    warn: Standard,
}

impl Policy {
    /// Parses the labels of a namespace; returns the policy and the errors in the labels.
    fn of(namespace: &Object) -> (Self, Vec<FieldError>) {
        let labels = metadata_of(namespace).get("labels");
        let label = |name: &str| labels?.get(format!("{PREFIX}{name}"))?.as_str();
        let mut errors = Vec::new();
        let mut wrong = |name: &str, value: &str, detail: &str| {
            let field = format!("metadata.labels[{PREFIX}{name}]");
            errors.push(FieldError::invalid(field, &json!(value), detail));
        };
        let mut standard = |mode: &str, fallback: Level| {
            let mut found = Standard {
                level: Level::Privileged,
                minor: None,
            };
            if let Some(text) = label(mode) {
                let levels = [Level::Privileged, Level::Baseline, Level::Restricted];
                let known = levels.into_iter().find(|level| level.name() == text);
                if known.is_none() {
                    wrong(mode, text, "must be one of privileged, baseline, restricted");
                }
                found.level = known.unwrap_or(fallback);
            }
            let name = format!("{mode}-version");
            if let Some(text) = label(&name).filter(|text| *text != "latest") {
                found.minor = minor_of(text);
                if found.minor.is_none() {
                    wrong(&name, text, "must be \"latest\" or \"v1.x\"");
                }
            }
            found
        };
        let enforce = standard("enforce", Level::Restricted);
        standard("audit", Level::Privileged);
        let mut warn = standard("warn", Level::Privileged);
        let is_enforced = label("enforce") == Some(enforce.level.name());
        if label("warn").is_none() && is_enforced && enforce.level > warn.level {
            warn.level = enforce.level;
            if label("warn-version").is_none() {
                warn.minor = enforce.minor;
            }
        }
        (Self { enforce, warn }, errors)
    }
}

fn minor_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("v1.")?;
    let is_number =
        digits == "0" || !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

/// Checks a write against the standards of its namespace.
pub(super) fn check(
    cx: &mut Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
) -> Result<()> {
    let is_pod = target.resource.is("", "pods");
    if target.resource.is("", "namespaces") && target.subresource.is_empty() {
        return check_namespace(cx, target, old, object);
    }
    let ignored = !matches!(target.subresource.as_str(), "" | "ephemeralcontainers" | "resize");
    let Some(path) = template(target) else {
        return Ok(());
    };
    if ignored || !is_pod && !target.subresource.is_empty() {
        return Ok(());
    }
    let Some(namespace) = cx.find("", "namespaces", &target.namespace) else {
        return Ok(());
    };
    let (policy, _) = Policy::of(&namespace.object());
    if policy.enforce.level == Level::Privileged && policy.warn.level == Level::Privileged {
        return Ok(());
    }
    if let Some(old) = old.filter(|_| is_pod)
        && !is_significant(old, object)
    {
        return Ok(());
    }
    let whole = Value::Object(object.clone());
    let pod = whole.pointer(path).unwrap_or(&Value::Null);
    if is_pod && let Some(detail) = detail(policy.enforce, pod) {
        let why = format!("violates PodSecurity \"{}\": {detail}", policy.enforce);
        return Err(forbidden(target, &why));
    }
    if let Some(detail) = detail(policy.warn, pod) {
        let warning = format!("would violate PodSecurity \"{}\": {detail}", policy.warn);
        cx.warnings.push(warning);
    }
    Ok(())
}

/// Returns the path of the Pod template in objects of a kind.
fn template(target: &Target) -> Option<&'static str> {
    let resource = &target.resource;
    Some(match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => "",
        ("", "podtemplates") => "/template",
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => "/spec/template",
        ("batch", "cronjobs") => "/spec/jobTemplate/spec/template",
        _ => return None,
    })
}

/// Returns true if an update changes images or containers.
fn is_significant(old: &Object, new: &Object) -> bool {
    let images = |object: &Object, list: &str| -> Vec<Value> {
        let containers = at(object, &["spec", list]).and_then(Value::as_array);
        let containers = containers.into_iter().flatten();
        containers
            .map(|container| json!([container["name"], container["image"]]))
            .collect()
    };
    let changed = |list: &str| images(old, list) != images(new, list);
    let before = images(old, "ephemeralContainers");
    let added = images(new, "ephemeralContainers")
        .into_iter()
        .any(|image| !before.contains(&image));
    changed("containers") || changed("initContainers") || added
}

/// Describes how a Pod violates a standard.
fn detail(standard: Standard, pod: &Value) -> Option<String> {
    let found = violations(standard, pod);
    let parts: Vec<String> = found
        .into_iter()
        .map(|violation| format!("{} ({})", violation.reason, violation.detail))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn violations(standard: Standard, pod: &Value) -> Vec<checks::Violation> {
    if standard.level == Level::Privileged {
        return Vec::new();
    }
    let is_restricted = standard.level == Level::Restricted;
    checks::violations(is_restricted, standard.minor.unwrap_or(u32::MAX), pod)
}

/// Rejects invalid labels. Warns about existing Pods that violate a stricter level.
fn check_namespace(
    cx: &mut Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
) -> Result<()> {
    let (policy, errors) = Policy::of(object);
    let before = old.map(Policy::of);
    let known = before.as_ref().map_or(&[][..], |(_, errors)| errors.as_slice());
    let texts = |errors: &[FieldError]| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    if !errors.is_empty() && texts(&errors) != texts(known) {
        let kind = target.resource.qualified_kind();
        return Err(Failure::invalid(kind, &target.name, &errors));
    }
    let Some((before, _)) = before else {
        return Ok(());
    };
    let (now, then) = (policy.enforce, before.enforce);
    let is_relaxed = now.minor == then.minor && now.level <= then.level;
    if now == then || now.level == Level::Privileged || is_relaxed {
        return Ok(());
    }
    let warnings = broken_by_pods(cx, &target.name, now);
    cx.warnings.extend(warnings);
    Ok(())
}

fn broken_by_pods(cx: &Context<'_>, namespace: &str, standard: Standard) -> Vec<String> {
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for stored in cx.in_namespace("", "pods", namespace).take(PODS_MAX) {
        let pod = Value::Object(Object::clone(&stored.object()));
        let reasons: Vec<String> = violations(standard, &pod)
            .into_iter()
            .map(|violation| violation.reason)
            .collect();
        if !reasons.is_empty() {
            pods.entry(reasons.join(", "))
                .or_default()
                .insert(stored.text("name"));
        }
    }
    let mut lines: Vec<String> = pods
        .into_iter()
        .map(|(reasons, names)| {
            let first = names.first().cloned().unwrap_or_default();
            match names.len() {
                1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                count => format!("{first} (and {} other pods): {reasons}", count - 1),
            }
        })
        .collect();
    lines.sort_unstable();
    if !lines.is_empty() {
        let head = format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{standard}\""
        );
        lines.insert(0, head);
    }
    lines
}
