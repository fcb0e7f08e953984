// SPDX-License-Identifier: Apache-2.0
//! Validation of admission policies and their bindings.

pub(super) mod rules;

use serde_json::{Value, json};

use super::{Errors, is_empty, items, text, workload::label_selector};
use crate::{
    cel::expression::{Expression, Scope, Type},
    names::{self, NameRule},
    policy::compiled::{ANNOTATION, CONDITION, MESSAGE, Scopes},
    status::FieldError,
};

/// Maximum number of match conditions.
const CONDITIONS_MAX: usize = 64;
/// Maximum number of audit annotations.
const ANNOTATIONS_MAX: usize = 20;
/// Maximum length of the expression of an audit annotation.
const ANNOTATION_EXPRESSION_MAX: usize = 5 * 1024;
/// Words that cannot be names of variables.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Checks a ValidatingAdmissionPolicy.
pub(super) fn policy(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    let mut scopes = Scopes::of(spec);
    errors.one_of(
        "spec.failurePolicy",
        text(spec, "failurePolicy"),
        &["Fail", "Ignore"],
    );
    if !spec["paramKind"].is_null() {
        param_kind(&spec["paramKind"], errors);
    }
    match &spec["matchConstraints"] {
        Value::Null => errors.required("spec.matchConstraints"),
        constraints => {
            match_resources("spec.matchConstraints", constraints, errors);
            if is_empty(&constraints["resourceRules"]) {
                errors.required("spec.matchConstraints.resourceRules");
            }
        }
    }
    match_conditions(
        "spec.matchConditions",
        &spec["matchConditions"],
        &scopes.conditions,
        errors,
    );
    for (path, variable) in items(spec, "variables", "spec.variables") {
        self::variable(&path, variable, &mut scopes, errors);
    }
    if is_empty(&spec["validations"]) && is_empty(&spec["auditAnnotations"]) {
        let detail = "validations or auditAnnotations must contain at least one item";
        for field in ["spec.validations", "spec.auditAnnotations"] {
            errors.push(FieldError::required(field, detail));
        }
        return;
    }
    for (path, validation) in items(spec, "validations", "spec.validations") {
        self::validation(&path, validation, &scopes, errors);
    }
    audit_annotations(object, &scopes.validations, errors);
}

/// Checks a ValidatingAdmissionPolicyBinding.
pub(super) fn binding(object: &Value, errors: &mut Errors<'_>) {
    let spec = &object["spec"];
    match text(spec, "policyName") {
        "" => errors.required("spec.policyName"),
        name => errors.subdomain("spec.policyName", name),
    }
    if !spec["paramRef"].is_null() {
        param_ref(&spec["paramRef"], errors);
    }
    if !spec["matchResources"].is_null() {
        match_resources("spec.matchResources", &spec["matchResources"], errors);
    }
    let path = "spec.validationActions";
    let mut seen: Vec<&str> = Vec::new();
    for (path, action) in items(spec, "validationActions", path) {
        let action = action.as_str().unwrap_or_default();
        errors.one_of(&path, action, &["Audit", "Deny", "Warn"]);
        if seen.contains(&action) {
            errors.push(FieldError::duplicate(path, &format!("{action:?}")));
        }
        seen.push(action);
    }
    if seen.contains(&"Deny") && seen.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.invalid(path, &spec["validationActions"], detail);
    }
    if seen.is_empty() {
        errors.required(path);
    }
}

fn param_kind(kind: &Value, errors: &mut Errors<'_>) {
    let path = "spec.paramKind.apiVersion";
    let given = text(kind, "apiVersion");
    match given.split('/').collect::<Vec<_>>().as_slice() {
        [""] => errors.required(path),
        [version] => version_name(path, version, errors),
        [group, version] => {
            if !group.is_empty() {
                for error in names::subdomain(group) {
                    errors.invalid(path, &json!(group), &error);
                }
            }
            match *version {
                "" => errors.invalid(path, &json!(given), "version must be specified"),
                version => version_name(path, version, errors),
            }
        }
        _ => {
            let detail = format!("unexpected GroupVersion string: {given}");
            errors.invalid(path, &json!(given), &detail);
        }
    }
    let path = "spec.paramKind.kind";
    match text(kind, "kind") {
        "" => errors.required(path),
        name => {
            let problems = NameRule::Label1035.check(&name.to_lowercase(), false);
            if !problems.is_empty() {
                let detail = format!(
                    "may have mixed case, but should otherwise match: {}",
                    problems.join(",")
                );
                errors.invalid(path, &json!(name), &detail);
            }
        }
    }
}

fn version_name(path: &str, version: &str, errors: &mut Errors<'_>) {
    let problems = NameRule::Label1035.check(version, false);
    if !problems.is_empty() {
        errors.invalid(path, &json!(version), &problems.join(","));
    }
}

fn param_ref(reference: &Value, errors: &mut Errors<'_>) {
    let path = "spec.paramRef";
    let (name, selector) = (text(reference, "name"), &reference["selector"]);
    for error in NameRule::PathSegment.check(name, false) {
        errors.invalid(&format!("{path}.name"), &json!(name), &error);
    }
    let exclusive = "name and selector are mutually exclusive";
    let has_both = !name.is_empty() && !selector.is_null();
    if has_both {
        errors.push(FieldError::forbidden(format!("{path}.name"), exclusive));
    }
    if !selector.is_null() {
        label_selector(&format!("{path}.selector"), selector, errors);
    }
    if has_both {
        errors.push(FieldError::forbidden(format!("{path}.selector"), exclusive));
    }
    if name.is_empty() && selector.is_null() {
        errors.push(FieldError::required(
            path,
            "one of name or selector must be specified",
        ));
    }
    let path = format!("{path}.parameterNotFoundAction");
    match text(reference, "parameterNotFoundAction") {
        "" => errors.required(&path),
        action => errors.one_of(&path, action, &["Deny", "Allow"]),
    }
}

/// Checks `matchConstraints` or `matchResources`.
fn match_resources(path: &str, resources: &Value, errors: &mut Errors<'_>) {
    let policy = text(resources, "matchPolicy");
    errors.one_of(&format!("{path}.matchPolicy"), policy, &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"] {
        label_selector(&format!("{path}.{selector}"), &resources[selector], errors);
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        for (path, rule) in items(resources, list, &format!("{path}.{list}")) {
            rules::names(&path, rule, errors);
            rules::rule(&path, rule, errors);
        }
    }
}

/// Checks match conditions.
pub(super) fn match_conditions(
    path: &str,
    conditions: &Value,
    scope: &Scope<'static>,
    errors: &mut Errors<'_>,
) {
    let conditions = conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    if conditions.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(
            path,
            conditions.len(),
            CONDITIONS_MAX as u64,
        ));
    }
    let mut seen = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let at = format!("{path}.expression");
        match text(condition, "expression").trim() {
            "" => errors.required(&at),
            expression => compile(&at, expression, scope, CONDITION, errors),
        }
        let (at, name) = (format!("{path}.name"), text(condition, "name"));
        if name.is_empty() {
            errors.required(&at);
            continue;
        }
        for error in names::qualified(name) {
            errors.invalid(&at, &json!(name), &error);
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(at, &format!("{name:?}")));
        }
        seen.push(name);
    }
}

fn compile(
    path: &str,
    expression: &str,
    scope: &Scope<'static>,
    wanted: &[Type<'static>],
    errors: &mut Errors<'_>,
) {
    if let Err(detail) = Expression::compile(expression, scope, wanted) {
        errors.invalid(path, &json!(expression), &detail);
    }
}

fn variable(path: &str, variable: &Value, scopes: &mut Scopes, errors: &mut Errors<'_>) {
    let name = text(variable, "name");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_identifier = name.chars().all(is_word)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !RESERVED.contains(&name);
    if name.trim().is_empty() {
        errors.push(FieldError::required(
            format!("{path}.name"),
            "name is not specified",
        ));
    } else if !is_identifier {
        let detail = "must be a valid CEL identifier";
        errors.invalid(&format!("{path}.name"), &json!(name), detail);
    }
    let expression = text(variable, "expression");
    let at = format!("{path}.expression");
    if expression.trim().is_empty() {
        errors.push(FieldError::required(at, "expression is not specified"));
        return;
    }
    let result = match Expression::compile(expression, &scopes.validations, &[]) {
        Ok(compiled) => compiled.result(),
        Err(detail) => {
            errors.invalid(&at, &json!(expression), &detail);
            Type::Dyn
        }
    };
    scopes.declare(name, result);
}

fn validation(path: &str, validation: &Value, scopes: &Scopes, errors: &mut Errors<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    let not_blank = "must be non-empty if specified";
    let expression = text(validation, "expression");
    if expression.trim().is_empty() {
        errors.push(FieldError::required(
            at("expression"),
            "expression is not specified",
        ));
    } else {
        compile(
            &at("expression"),
            expression,
            &scopes.validations,
            CONDITION,
            errors,
        );
    }
    let expression = text(validation, "messageExpression");
    match (expression.is_empty(), expression.trim().is_empty()) {
        (false, true) => errors.invalid(&at("messageExpression"), &json!(expression), not_blank),
        (false, false) => compile(
            &at("messageExpression"),
            expression,
            &scopes.messages,
            MESSAGE,
            errors,
        ),
        _ => {}
    }
    let message = text(validation, "message");
    if !message.is_empty() && message.trim().is_empty() {
        errors.invalid(&at("message"), &json!(message), not_blank);
    } else if message.trim().contains(['\n', '\r']) {
        errors.invalid(&at("message"), &json!(message), "must not contain line breaks");
    }
    if let Some(reason) = validation["reason"].as_str() {
        errors.one_of(
            &at("reason"),
            reason,
            &["Forbidden", "Invalid", "RequestEntityTooLarge"],
        );
    }
}

fn audit_annotations(object: &Value, scope: &Scope<'static>, errors: &mut Errors<'_>) {
    let path = "spec.auditAnnotations";
    let name = object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let annotations = &object["spec"]["auditAnnotations"];
    if annotations
        .as_array()
        .is_some_and(|list| list.len() > ANNOTATIONS_MAX)
    {
        let detail = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.invalid(path, annotations, &detail);
    }
    let mut seen = Vec::new();
    for (path, annotation) in items(&object["spec"], "auditAnnotations", path) {
        let (key, at) = (text(annotation, "key"), format!("{path}.key"));
        if name.is_empty() {
            errors.invalid(&at, &json!(key), "requires metadata.name be non-empty");
        } else {
            let full = format!("{name}/{key}");
            for error in names::qualified(&full) {
                errors.invalid(&at, &json!(full), &error);
            }
        }
        let expression = text(annotation, "valueExpression").trim();
        let place = format!("{path}.valueExpression");
        if expression.is_empty() {
            errors.push(FieldError::required(place, "valueExpression is not specified"));
        } else if expression.len() > ANNOTATION_EXPRESSION_MAX {
            let detail = format!("must not exceed {ANNOTATION_EXPRESSION_MAX} bytes in length");
            errors.push(FieldError::required(place, &detail));
        } else {
            compile(&place, expression, scope, ANNOTATION, errors);
        }
        if seen.contains(&key) {
            errors.push(FieldError::duplicate(at, &format!("{key:?}")));
        }
        seen.push(key);
    }
}
