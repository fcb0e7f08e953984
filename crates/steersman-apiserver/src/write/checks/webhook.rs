// SPDX-License-Identifier: Apache-2.0
//! Validation of webhook configurations.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Errors,
    admission::{match_conditions, rules},
    is_empty, items, text,
    workload::label_selector,
};
use crate::{
    names::{self, NameRule},
    policy::compiled::Scopes,
    status::FieldError,
};

/// Validates a mutating or validating configuration.
pub(super) fn configuration(object: &Value, errors: &mut Errors<'_>) {
    let mut names = BTreeSet::new();
    for (path, webhook) in items(object, "webhooks", "webhooks") {
        check_webhook(&path, webhook, errors);
        review_versions(&format!("{path}.admissionReviewVersions"), webhook, errors);
        let name = text(webhook, "name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(
                format!("{path}.name"),
                &format!("{name:?}"),
            ));
        }
    }
}

fn check_webhook(path: &str, webhook: &Value, errors: &mut Errors<'_>) {
    full_name(&format!("{path}.name"), text(webhook, "name"), errors);
    for (path, rule) in items(webhook, "rules", &format!("{path}.rules")) {
        rules::rule(&path, rule, errors);
    }
    let at = |field: &str| format!("{path}.{field}");
    let mut one_of = |field: &str, supported: &[&str]| {
        if let Some(value) = webhook.get(field).and_then(Value::as_str) {
            errors.one_of(&at(field), value, supported);
        }
    };
    one_of("failurePolicy", &["Fail", "Ignore"]);
    one_of("matchPolicy", &["Equivalent", "Exact"]);
    one_of("sideEffects", &["None", "NoneOnDryRun"]);
    if webhook["sideEffects"].is_null() {
        let detail = "must specify one of None, NoneOnDryRun";
        errors.push(FieldError::required(at("sideEffects"), detail));
    }
    let timeout = &webhook["timeoutSeconds"];
    if timeout
        .as_i64()
        .is_some_and(|seconds| !(1..=30).contains(&seconds))
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.invalid(&at("timeoutSeconds"), timeout, detail);
    }
    for field in ["namespaceSelector", "objectSelector"] {
        label_selector(&at(field), &webhook[field], errors);
    }
    if let Some(policy) = webhook.get("reinvocationPolicy").and_then(Value::as_str) {
        errors.one_of(&at("reinvocationPolicy"), policy, &["IfNeeded", "Never"]);
    }
    client(&at("clientConfig"), &webhook["clientConfig"], errors);
    let conditions = &webhook["matchConditions"];
    match_conditions(
        &at("matchConditions"),
        conditions,
        &Scopes::of(webhook).conditions,
        errors,
    );
}

fn full_name(path: &str, name: &str, errors: &mut Errors<'_>) {
    if name.is_empty() {
        errors.required(path);
        return;
    }
    let wrong = names::subdomain(name);
    if !wrong.is_empty() {
        errors.invalid(path, &json!(name), &wrong.join(","));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.invalid(path, &json!(name), detail);
    }
}

/// Validates the conversion of a CRD.
pub(crate) fn conversion(conversion: Option<&Value>, errors: &mut Vec<FieldError>) {
    let Some(conversion) = conversion else {
        return;
    };
    let mut errors = Errors(errors);
    let strategy = text(conversion, "strategy");
    errors.one_of("spec.conversion.strategy", strategy, &["None", "Webhook"]);
    let config = conversion
        .pointer("/webhook/clientConfig")
        .filter(|config| !config.is_null());
    let versions = conversion.pointer("/webhook/conversionReviewVersions");
    let given = versions.and_then(Value::as_array).into_iter().flatten();
    let given: Vec<&str> = given.filter_map(Value::as_str).collect();
    let (at_config, at_versions) = (
        "spec.conversion.webhookClientConfig",
        "spec.conversion.conversionReviewVersions",
    );
    if strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if config.is_some() {
            errors.push(FieldError::forbidden(at_config, detail));
        }
        if !given.is_empty() {
            errors.push(FieldError::forbidden(at_versions, detail));
        }
        return;
    }
    match config {
        Some(config) => client(at_config, config, &mut errors),
        None => errors.push(FieldError::required(
            at_config,
            "required when strategy is set to Webhook",
        )),
    }
    if given.is_empty() {
        errors.push(FieldError::required(at_versions, ""));
    } else if !given.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let detail = "must include at least one of v1, v1beta1";
        errors.invalid(at_versions, &json!(given), detail);
    }
}

/// Validates a `clientConfig`.
fn client(path: &str, config: &Value, errors: &mut Errors<'_>) {
    let given = |field: &str| config.get(field).is_some_and(|value| !value.is_null());
    match (given("url"), given("service")) {
        (true, false) => url(&format!("{path}.url"), text(config, "url"), errors),
        (false, true) => service(&format!("{path}.service"), &config["service"], errors),
        _ => {
            let detail = "exactly one of url or service is required";
            errors.push(FieldError::required(path, detail));
        }
    }
}

fn url(path: &str, url: &str, errors: &mut Errors<'_>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() {
        ""
    } else {
        rest.split('/').next().unwrap_or_default()
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let rules = [
        (
            scheme != "https",
            scheme,
            format!("'https' is the only allowed URL scheme{FORM}"),
        ),
        (host.is_empty(), host, format!("host must be specified{FORM}")),
        (
            !user.is_empty(),
            user,
            "user information is not permitted in the URL".to_owned(),
        ),
        (
            !fragment.is_empty(),
            fragment,
            "fragments are not permitted in the URL".to_owned(),
        ),
        (
            !query.is_empty(),
            query,
            "query parameters are not permitted in the URL".to_owned(),
        ),
    ];
    for (_, value, detail) in rules.iter().filter(|(broken, ..)| *broken) {
        errors.invalid(path, &json!(value), detail);
    }
}

fn service(path: &str, service: &Value, errors: &mut Errors<'_>) {
    // The real server confuses the two fields.
    for (field, shown) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, field).is_empty() {
            errors.required(&format!("{path}.{shown}"));
        }
    }
    let port = &service["port"];
    if !(1..=65535).contains(&port.as_i64().unwrap_or_default()) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.invalid(&format!("{path}.port"), port, detail);
    }
    let Some(given) = service.get("path").and_then(Value::as_str) else {
        return;
    };
    let (at, value) = (format!("{path}.path"), json!(given));
    match given {
        "" | "/" => return,
        "//" => return errors.invalid(&at, &value, "segment[0] may not be empty"),
        _ => {}
    }
    let rest = match given.strip_prefix('/') {
        Some(rest) => rest,
        None => {
            errors.invalid(&at, &value, "must start with a '/'");
            let mut rest = given.chars();
            rest.next();
            rest.as_str()
        }
    };
    let segments = rest.strip_suffix('/').unwrap_or(rest).split('/');
    for (index, segment) in segments.enumerate() {
        if segment.is_empty() {
            errors.invalid(&at, &value, &format!("segment[{index}] may not be empty"));
            continue;
        }
        for error in names::subdomain(segment) {
            errors.invalid(&at, &value, &format!("segment[{index}]: {error}"));
        }
    }
}

fn review_versions(path: &str, webhook: &Value, errors: &mut Errors<'_>) {
    let versions = &webhook["admissionReviewVersions"];
    if is_empty(versions) {
        errors.push(FieldError::required(path, "must specify one of v1, v1beta1"));
        return;
    }
    let versions = versions
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let versions: Vec<&str> = versions.collect();
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if !seen.insert(version) {
            errors.invalid(&at, &json!(version), "duplicate version");
            continue;
        }
        for error in NameRule::Label1035.check(version, false) {
            errors.invalid(&at, &json!(version), &error);
        }
    }
    if !versions
        .iter()
        .any(|version| matches!(*version, "v1" | "v1beta1"))
    {
        let detail = "must include at least one of v1, v1beta1";
        errors.invalid(path, &json!(versions), detail);
    }
}
