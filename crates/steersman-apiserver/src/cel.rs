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
mod lower;
mod types;

use kube_cel::{CompiledSchema, ErrorKind, RootContext, Validator, compile_schema};
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
        has_rules(schema).then(|| Self(with_room(|| compile_schema(schema))))
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
            Value::Object(object)
        };
        let (new, old) = (whole(object), old.map(whole));
        let result = with_room(|| {
            Validator::new().validate_compiled_with_context(&self.0, &new, old.as_ref(), Some(&root))
        });
        let Err(errors) = result else { return Vec::new() };
        errors
            .into_vec()
            .into_iter()
            .map(|error| field_error(&new, &error))
            .collect()
    }
}

/// Checks that all rules of a schema compile.
pub(crate) fn check_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
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
            errors.push(FieldError::invalid(at, &Value::from(text), &message));
            continue;
        }
        let expression = rule.get("messageExpression").and_then(Value::as_str);
        if let Some((text, excess)) = expression.and_then(|text| Some((text, excess(text)?))) {
            let at = format!("{path}.x-kubernetes-validations[{index}].messageExpression");
            let message = format!("messageExpression compilation failed: {excess}");
            errors.push(FieldError::invalid(at, &Value::from(text), &message));
            continue;
        }
        let alone = with_room(|| compile_schema(&json!({"x-kubernetes-validations": [rule]})));
        for error in alone.compilation_errors() {
            errors.push(FieldError::invalid(
                at.clone(),
                &Value::from(text),
                &format!("compilation failed: {error}"),
            ));
        }
    }
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        check_schema(property, &format!("{path}.properties[{name}]"), errors);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key) {
            check_schema(inner, &format!("{path}.{key}"), errors);
        }
    }
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

fn field_error(object: &Value, error: &kube_cel::ValidationError) -> FieldError {
    let path = error.field_path.clone();
    let value = find(object, &path);
    let message = match error.kind {
        ErrorKind::ValidationFailure => error.message.clone(),
        _ => format!("rule evaluation error: {}", error.message),
    };
    let field = if path.is_empty() { "<nil>".to_owned() } else { path };
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
