// SPDX-License-Identifier: Apache-2.0
//! Validation rules in CEL (`x-kubernetes-validations`), evaluated by the crate `kube-cel`.
//!
//! No type of that crate is visible outside this module, since the crate is young and pinned to an older `cel`.
//!
//! # Limits
//! Without optimisation, the parser of that crate takes 100 KB of stack for each pair of brackets. Rules are therefore
//! compiled and evaluated on a separate stack, and rules that would not fit there are rejected.

mod check;
pub(crate) mod expression;
mod fields;
mod lower;
mod types;

use kube_cel::{CompiledSchema, ErrorKind, RootContext, Validator, cel::ExecutionError, compile_schema};
use serde_json::{Value, json};

use crate::{status::FieldError, store::Object};

/// Maximum nesting of brackets and conditions. The parser stops at 96, and not always cleanly; the real server stops at
/// 250.
const NESTING: usize = 90;
/// Maximum number of operators and members in a rule.
const OPERATORS: usize = 1000;
/// A call that creates a list of any length. The real server limits the cost of a rule; this server accepts only a
/// literal number up to [`RANGE_MAX`].
const RANGE: &str = "lists.range(";
const RANGE_MAX: usize = 1_000_000;
/// Stack size, enough for both limits.
const STACK: usize = 64 * 1024 * 1024;

/// Runs `work` with a larger stack than that of the task.
fn with_room<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK / 2, STACK, work)
}

/// Returns why a rule is rejected before it is compiled: its size, or object construction, which makes the evaluator
/// panic.
fn excess(rule: &str) -> Option<String> {
    if constructs_objects(rule) {
        return Some("object construction such as `Object{}` is not supported here".to_owned());
    }
    let (mut depth, mut deepest, mut conditions, mut operators) = (0_usize, 0, 0, 0);
    let (mut last, mut code) = (' ', String::new());
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' | '"' => {
                let is_raw = matches!(last, 'r' | 'R');
                while let Some(inner) = characters.next().filter(|inner| *inner != character) {
                    if inner == '\\' && !is_raw {
                        characters.next();
                    }
                }
            }
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '?' => conditions += 1,
            _ if character.is_ascii_punctuation() && character != '_' => operators += 1,
            _ => {}
        }
        if !character.is_whitespace() {
            code.push(character);
        }
        last = character;
    }
    let is_bounded = |rest: &str| {
        let length = rest
            .split_once(')')
            .and_then(|(length, _)| length.parse::<usize>().ok());
        length.is_some_and(|length| length <= RANGE_MAX)
    };
    if !code.split(RANGE).skip(1).all(is_bounded) {
        return Some(format!("lists.range takes a number up to {RANGE_MAX} here"));
    }
    // The second half of a condition is nested in the first.
    if deepest + conditions > NESTING {
        return Some(format!("expression recursion limit exceeded: {NESTING}"));
    }
    (operators > OPERATORS).then(|| format!("expression has more than {OPERATORS} operators"))
}

/// Returns true if a name precedes a brace, as in `Object{a: 1}`; map literals have no name.
fn constructs_objects(rule: &str) -> bool {
    let (mut word, mut has_ended) = (String::new(), false);
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' | '"' => {
                let is_raw = matches!(word.as_str(), "r" | "R" | "br" | "bR" | "Br" | "BR");
                while let Some(inner) = characters.next().filter(|inner| *inner != character) {
                    if inner == '\\' && !is_raw {
                        characters.next();
                    }
                }
                word.clear();
            }
            '{' if !word.is_empty() && word != "in" => return true,
            _ if character.is_whitespace() => has_ended = true,
            _ if character.is_alphanumeric() || character == '_' => {
                if has_ended {
                    word.clear();
                }
                has_ended = false;
                word.push(character);
            }
            _ => word.clear(),
        }
    }
    false
}

/// The compiled rules of one schema.
#[derive(Debug)]
pub(crate) struct Rules(CompiledSchema);

impl Rules {
    /// Compiles the rules of a schema in its OpenAPI form; returns `None` if it has none.
    pub(crate) fn compile(schema: &Value) -> Option<Self> {
        has_rules(schema).then(|| {
            let mut compiled = with_room(|| compile_schema(schema));
            with_room(|| fields::index_all(&mut compiled));
            Self(compiled)
        })
    }

    /// Evaluates the rules on an object.
    pub(crate) fn check(
        &self,
        object: &Object,
        old: Option<&Object>,
        api_version: &str,
        kind: &str,
    ) -> Vec<FieldError> {
        let (group, _) = api_version.split_once('/').unwrap_or(("", api_version));
        let root = RootContext {
            api_version: api_version.to_owned(),
            api_group: group.to_owned(),
            kind: kind.to_owned(),
        };
        let whole = |object: &Object| {
            let mut object = object.clone();
            object.insert("apiVersion".to_owned(), json!(api_version));
            object.insert("kind".to_owned(), json!(kind));
            // Of the metadata, rules see only `name` and `generateName`, as on the real server.
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.retain(|key, _| matches!(key.as_str(), "name" | "generateName"));
            }
            let mut object = Value::Object(object);
            drop_nulls(&mut object);
            object
        };
        let (new, old) = (whole(object), old.map(whole));
        let result = with_room(|| {
            Validator::new().validate_compiled_with_context(&self.0, &new, old.as_ref(), Some(&root))
        });
        let Err(errors) = result else { return Vec::new() };
        errors
            .into_vec()
            .into_iter()
            .map(|error| field_error(&self.0, &new, &error))
            .collect()
    }
}

/// Removes fields that are null: rules see them as absent.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Checks that all rules of the schema of a CRD compile.
pub(crate) fn check_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    check_node(schema, path, true, errors);
}

fn check_node(schema: &Value, path: &str, is_root: bool, errors: &mut Vec<FieldError>) {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}].rule");
        let text = rule.get("rule").and_then(Value::as_str).unwrap_or_default();
        if text.trim().is_empty() {
            errors.push(FieldError::required(at, "rule is not specified"));
            continue;
        }
        if let Some(excess) = excess(text) {
            let message = format!("compilation failed: {excess}");
            errors.push(FieldError::invalid_text(at, &printed(rule), &message));
            continue;
        }
        let expression = rule.get("messageExpression").and_then(Value::as_str);
        if let Some(excess) = expression.and_then(excess) {
            let at = format!("{path}.x-kubernetes-validations[{index}].messageExpression");
            let message = format!("messageExpression compilation failed: {excess}");
            errors.push(FieldError::invalid_text(at, &printed(rule), &message));
            continue;
        }
        let alone = with_room(|| compile_schema(&json!({"x-kubernetes-validations": [rule]})));
        let errors_of_rule = alone.compilation_errors();
        let mut issues: Vec<String> = errors_of_rule.iter().map(ToString::to_string).collect();
        if issues.is_empty() {
            issues.extend(fields::issues(schema, rule, text, is_root));
        }
        for issue in issues {
            let message = format!("compilation failed: {issue}");
            errors.push(FieldError::invalid_text(at.clone(), &printed(rule), &message));
        }
    }
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        check_node(property, &format!("{path}.properties[{name}]"), false, errors);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key) {
            check_node(inner, &format!("{path}.{key}"), false, errors);
        }
    }
}

/// Returns a rule as the real server prints it in errors: a Go struct.
fn printed(rule: &Value) -> String {
    let field = |key: &str, absent: Value| rule.get(key).cloned().unwrap_or(absent);
    let fields = [
        ("Rule", field("rule", json!(""))),
        ("Message", field("message", json!(""))),
        ("MessageExpression", field("messageExpression", json!(""))),
        ("Reason", field("reason", Value::Null)),
        ("FieldPath", field("fieldPath", json!(""))),
        ("OptionalOldSelf", field("optionalOldSelf", Value::Null)),
    ];
    let fields = fields.map(|(key, value)| format!("{}:{value}", json!(key)));
    crate::json::escape_html(&format!("{{{}}}", fields.join(",")))
}

fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.contains_key("x-kubernetes-validations") || fields.values().any(has_rules)
        }
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

fn field_error(schema: &CompiledSchema, object: &Value, error: &kube_cel::ValidationError) -> FieldError {
    let path = error.field_path.clone();
    let value = find(object, &path);
    let field = if path.is_empty() { "<nil>".to_owned() } else { path };
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<ExecutionError>());
    if error.kind == ErrorKind::EvaluationError
        && let Some(cause) = cause
    {
        let message = message_of(schema, &error.rule).filter(|message| !message.is_empty());
        let rule = message.unwrap_or(&error.rule).trim();
        let why = expression::worded(cause);
        let detail = if why.starts_with("no such overload") {
            format!(
                "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
            )
        } else {
            format!("{why} evaluating rule: {rule}")
        };
        return FieldError::invalid(field, &json!(value.map_or("object", type_name)), &detail);
    }
    let message = match error.kind {
        ErrorKind::ValidationFailure => error.message.clone(),
        _ => format!("rule evaluation error: {}", error.message),
    };
    match error.reason.as_deref() {
        Some("FieldValueRequired") => FieldError::required(field, &message),
        Some("FieldValueForbidden") => FieldError::forbidden(field, &message),
        Some("FieldValueDuplicate") => FieldError::duplicate(
            field,
            &value.map_or_else(|| "null".to_owned(), ToString::to_string),
        ),
        _ => FieldError::invalid_bare(field, &message),
    }
}

/// Returns the static message of a rule.
fn message_of<'a>(schema: &'a CompiledSchema, rule: &str) -> Option<&'a str> {
    let mut own = schema.validations.iter().flatten();
    if let Some(found) = own.find(|found| found.rule.rule == rule) {
        return found.rule.message.as_deref();
    }
    let properties = schema.properties.values();
    let items = schema.items.as_deref().into_iter();
    let values = schema.additional_properties.as_deref().into_iter();
    let mut inner = properties.chain(items).chain(values);
    inner.find_map(|inner| message_of(inner, rule))
}

/// Returns the type of a value, as a schema names it.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Object(_) | Value::Null => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
    }
}

/// Returns the value at a path such as `spec.items[0].name`.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        value = match part.strip_suffix(']') {
            Some(index) => match index.parse::<usize>() {
                Ok(index) => value.get(index)?,
                Err(_) => value.get(index.trim_matches(|c| c == '"' || c == '\''))?,
            },
            None => value.get(part)?,
        };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_texts_are_no_objects() {
        for map in [
            "{'a': 1}['a'] == 1",
            "self.a in {'b': 1}",
            "self.a == 'Object{}'",
            "[{'a': 1}].size() > 0",
        ] {
            assert!(!constructs_objects(map), "{map}");
        }
        for object in ["Object{a: 1}.a == 1", "a.b.C {}", "x in Y{z: 1}"] {
            assert!(constructs_objects(object), "{object}");
        }
    }
}
