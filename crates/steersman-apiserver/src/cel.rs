// SPDX-License-Identifier: Apache-2.0
//! Rules in CEL (`x-kubernetes-validations`), by the crate `kube-cel`.
//!
//! Nothing of that crate is seen outside this module: it is young and pinned to an older `cel`.
//!
//! # Limits
//! Its parser takes a hundred kilobytes of stack for each pair of brackets when it is not optimised, so that rules are
//! compiled and evaluated on a stack of their own, and those that would not fit there are refused.

use kube_cel::{CompiledSchema, ErrorKind, RootContext, Validator, compile_schema};
use serde_json::{Value, json};

use crate::{status::FieldError, store::Object};

/// As deep as brackets and conditions may be nested. The parser stops at 96, and not always in good order; the real
/// server stops at 250.
const NESTING: usize = 90;
/// As many operators and members may be in a rule.
const OPERATORS: usize = 1000;
/// Makes a list as long as it says. The real server counts what a rule costs; here only a number that can be seen is taken.
const RANGE: &str = "lists.range(";
const RANGE_MAX: usize = 1_000_000;
/// Enough for both.
const STACK: usize = 64 * 1024 * 1024;

/// Does something for which the stack of a task may be too small.
fn with_room<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK / 2, STACK, work)
}

/// Why a rule is refused before it is compiled: for its size, or because it constructs objects, at which the evaluator panics.
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
    // The second half of a condition is nested in it.
    if deepest + conditions > NESTING {
        return Some(format!("expression recursion limit exceeded: {NESTING}"));
    }
    (operators > OPERATORS).then(|| format!("expression has more than {OPERATORS} operators"))
}

/// True if a name stands before a brace, as in `Object{a: 1}`. Maps have none.
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
    /// Compiles the rules of a schema in its OpenAPI form; nothing if it has none.
    pub(crate) fn compile(schema: &Value) -> Option<Self> {
        has_rules(schema).then(|| Self(with_room(|| compile_schema(schema))))
    }

    /// What the rules say of an object.
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
            // Rules see the name only, as in the real server.
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

/// Checks that all rules of a schema can be compiled.
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

/// The value at a path as `spec.items[0].name`.
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
