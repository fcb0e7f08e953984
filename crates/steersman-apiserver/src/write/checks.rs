// SPDX-License-Identifier: Apache-2.0
//! Hand-written validation of built-in kinds, as far as controllers meet it, with the messages of the real server.
//!
//! The recorded conversations `pods`, `workloads`, `networks` and `settings` cover each rule.

mod admission;
mod event;
mod limits;
mod network;
mod pod;
mod settings;
pub(crate) mod webhook;
mod workload;

use serde_json::{Map, Value, json};

use crate::{
    handler::Target,
    names::{self, NameRule},
    status::FieldError,
    store::Object,
};

/// Validates the content of a built-in object.
pub(crate) fn check(target: &Target, old: Option<&Object>, object: &Object, errors: &mut Vec<FieldError>) {
    let whole = Value::Object(object.clone());
    let old = old.map(|old| Value::Object(old.clone()));
    let old = old.as_ref();
    let mut errors = Errors(errors);
    match (target.resource.group.as_str(), target.resource.plural.as_str()) {
        ("", "pods") => match (target.subresource.as_str(), old) {
            ("", old) => pod::check(old, &whole, &mut errors),
            (subresource @ ("ephemeralcontainers" | "resize"), Some(old)) => {
                pod::check_subresource(subresource, old, &whole, &mut errors)
            }
            _ => {}
        },
        ("", "limitranges") => limits::limit_range(&whole, &mut errors),
        ("", "resourcequotas") if target.subresource == "status" => limits::quota_status(&whole, &mut errors),
        ("", "resourcequotas") => limits::quota(old, &whole, &mut errors),
        ("scheduling.k8s.io", "priorityclasses") => limits::priority_class(old, &whole, &mut errors),
        ("", "configmaps") => settings::config_map(old, &whole, &mut errors),
        ("", "secrets") => settings::secret(old, &whole, &mut errors),
        ("", "services") => network::service(old, &whole, &mut errors),
        ("", "persistentvolumeclaims") => settings::claim(old, &whole, &mut errors),
        ("" | "events.k8s.io", "events") => event::check(target, old, &whole, &mut errors),
        ("apps", "deployments") => workload::deployment(old, &whole, &mut errors),
        ("apps", "replicasets") => workload::replica_set(old, &whole, &mut errors),
        ("apps", "statefulsets") => workload::stateful_set(old, &whole, &mut errors),
        ("apps", "daemonsets") => workload::daemon_set(old, &whole, &mut errors),
        ("batch", "jobs") => workload::job(old, &whole, &mut errors),
        ("batch", "cronjobs") => workload::cron_job(&whole, &mut errors),
        ("networking.k8s.io", "ingresses") => network::ingress(&whole, &mut errors),
        ("autoscaling", "horizontalpodautoscalers") => settings::autoscaler(&whole, &mut errors),
        ("policy", "poddisruptionbudgets") => settings::budget(&whole, &mut errors),
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => {
            settings::role(target.resource.namespaced, &whole, &mut errors)
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            settings::binding(target.resource.namespaced, old, &whole, &mut errors)
        }
        (
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations" | "validatingwebhookconfigurations",
        ) => webhook::configuration(&whole, &mut errors),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            admission::policy(&whole, &mut errors)
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            admission::binding(&whole, &mut errors)
        }
        ("coordination.k8s.io", "leases") => settings::lease(&whole, &mut errors),
        _ => {}
    }
}

/// Collects errors; has the rules that many kinds share.
struct Errors<'a>(&'a mut Vec<FieldError>);

impl Errors<'_> {
    fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    fn required(&mut self, path: &str) {
        self.push(FieldError::required(path, ""));
    }

    fn invalid(&mut self, path: &str, value: &Value, detail: &str) {
        self.push(FieldError::invalid(path, value, detail));
    }

    /// Checks that a text is one of the supported values.
    fn one_of(&mut self, path: &str, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            let supported: Vec<String> = supported.iter().map(|&text| text.to_owned()).collect();
            self.push(FieldError::unsupported(path, &json!(value), &supported));
        }
    }

    /// Checks that a number, if present, is not negative.
    fn not_negative(&mut self, path: &str, value: &Value) {
        if value.as_i64().is_some_and(|number| number < 0) {
            self.invalid(path, value, "must be greater than or equal to 0");
        }
    }

    fn port(&mut self, path: &str, value: &Value) {
        if !(1..=65535).contains(&value.as_i64().unwrap_or_default()) {
            self.invalid(path, value, "must be between 1 and 65535, inclusive");
        }
    }

    fn port_name(&mut self, path: &str, name: &str) {
        let value = json!(name);
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let rules = [
            (name.len() > 15, "must be no more than 15 characters"),
            (
                !name.chars().all(legal),
                "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            ),
            (
                !name.chars().any(|c| c.is_ascii_lowercase()),
                "must contain at least one letter (a-z)",
            ),
            (name.contains("--"), "must not contain consecutive hyphens"),
            (
                name.starts_with('-') || name.ends_with('-'),
                "must not begin or end with a hyphen",
            ),
        ];
        for (_, detail) in rules.iter().filter(|(broken, _)| *broken) {
            self.invalid(path, &value, detail);
        }
    }

    /// Checks a port given by number or name.
    fn target_port(&mut self, path: &str, value: &Value) {
        match value {
            Value::String(name) => self.port_name(path, name),
            number => self.port(path, number),
        }
    }

    /// Checks a DNS label.
    fn label(&mut self, path: &str, name: &str) {
        for error in NameRule::Label.check(name, false) {
            self.invalid(path, &json!(name), &error);
        }
    }

    fn subdomain(&mut self, path: &str, name: &str) {
        for error in names::subdomain(name) {
            self.invalid(path, &json!(name), &error);
        }
    }

    /// Checks labels, also those of selectors.
    fn labels(&mut self, path: &str, labels: &Value) {
        for (key, value) in labels.as_object().into_iter().flatten() {
            for error in names::qualified(key) {
                self.invalid(path, &json!(key), &error);
            }
            for error in names::label_value(value.as_str().unwrap_or_default()) {
                self.invalid(path, value, &error);
            }
        }
    }

    /// Checks a non-negative number or a percentage.
    fn share(&mut self, path: &str, value: &Value) {
        match value {
            Value::String(text) => {
                let percent = text
                    .strip_suffix('%')
                    .and_then(|number| number.parse::<u64>().ok());
                if percent.is_none() {
                    let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
                    self.invalid(path, value, detail);
                }
            }
            number => self.not_negative(path, number),
        }
    }

    /// Checks that a percentage is at most 100 %.
    fn at_most_all(&mut self, path: &str, value: &Value) {
        let percent = value
            .as_str()
            .and_then(|text| text.strip_suffix('%')?.parse::<u64>().ok());
        if percent.is_some_and(|percent| percent > 100) {
            self.invalid(path, value, "must not be greater than 100%");
        }
    }

    fn immutable(&mut self, path: &str, old: &Value, new: &Value) {
        if old != new {
            self.invalid(path, new, "field is immutable");
        }
    }
}

/// Returns the text of a field; empty if it is absent.
fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of a list with their paths.
fn items<'a>(value: &'a Value, key: &str, path: &str) -> impl Iterator<Item = (String, &'a Value)> + use<'a> {
    let path = path.to_owned();
    let list = value.get(key).and_then(Value::as_array).into_iter().flatten();
    list.enumerate()
        .map(move |(index, item)| (format!("{path}[{index}]"), item))
}

fn fields<'a>(value: &'a Value, key: &str) -> Option<&'a Map<String, Value>> {
    value.get(key).and_then(Value::as_object)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
