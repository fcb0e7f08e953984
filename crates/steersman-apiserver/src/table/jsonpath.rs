// SPDX-License-Identifier: Apache-2.0
//! The JSONPath of printer columns: fields, indexes, wildcards and simple filters. It is a Kubernetes dialect, which
//! crates for standard JSONPath do not parse.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// Selects the items in which the value at a path has a given value, or exists at all.
    Where(Path, Option<(bool, Value)>),
}

impl Path {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// Returns the part that cannot be parsed.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('$');
        while !rest.is_empty() {
            if let Some(bracket) = rest.strip_prefix('[') {
                let end = closing(bracket).ok_or_else(|| rest.to_owned())?;
                steps.push(inside(&bracket[..end])?);
                rest = &bracket[end + 1..];
            } else {
                let field = rest.strip_prefix('.').ok_or_else(|| rest.to_owned())?;
                let (name, after) = field_name(field);
                match name.as_str() {
                    "" => return Err(rest.to_owned()),
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(name)),
                }
                rest = after;
            }
        }
        Ok(Self(steps))
    }

    /// Returns the first value at this path.
    pub(crate) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.of(value)).collect();
        }
        found.first().copied()
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => fields.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let at = if *index < 0 { index + length } else { *index };
                let at = usize::try_from(at).ok();
                at.and_then(|at| items.get(at)).into_iter().collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(fields)) => fields.values().collect(),
            (Self::Where(path, wanted), Value::Array(items)) => {
                let holds = |item: &&Value| match (path.first(item), wanted) {
                    (Some(found), Some((equal, value))) => (found == value) == *equal,
                    (found, None) => found.is_some(),
                    (None, Some(_)) => false,
                };
                items.iter().filter(holds).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Parses a name up to the next dot or bracket; a backslash escapes the next character.
fn field_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, next)| next)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Returns the position of the closing bracket, outside of quotes and inner brackets.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, character) in text.char_indices() {
        match (character, quote) {
            (character, Some(open)) if character == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(character),
            ('[', None) => depth += 1,
            (']', None) if depth == 0 => return Some(at),
            (']', None) => depth -= 1,
            _ => {}
        }
    }
    None
}

fn inside(text: &str) -> Result<Step, String> {
    let text = text.trim();
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = quoted(text) {
        return Ok(Step::Field(name));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let operators = [("==", true), ("!=", false)];
        let found = operators
            .iter()
            .find_map(|(operator, equal)| filter.split_once(operator).map(|parts| (parts, *equal)));
        let (path, wanted) = match found {
            Some(((path, value), equal)) => (path, Some((equal, literal(value.trim())?))),
            None => (filter, None),
        };
        let path = path.trim().strip_prefix('@').ok_or_else(|| text.to_owned())?;
        return Ok(Step::Where(Path::parse(path)?, wanted));
    }
    text.parse().map(Step::Index).map_err(|_| text.to_owned())
}

fn quoted(text: &str) -> Option<String> {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"')).map(str::to_owned)
}

fn literal(text: &str) -> Result<Value, String> {
    match quoted(text) {
        Some(text) => Ok(Value::from(text)),
        None => serde_json::from_str(text).map_err(|_| text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_forms_that_definitions_use_are_understood() {
        let object = json!({
            "spec": {"a": {"b.c": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]},
        });
        let cases = [
            (".spec.a['b.c']", Some(json!(1))),
            (".spec.a.b\\.c", Some(json!(1))),
            (".spec.list[1].v", Some(json!(2))),
            (".spec.list[-1].n", Some(json!("y"))),
            (".spec.list[*].n", Some(json!("x"))),
            (".spec.list[?(@.n==\"y\")].v", Some(json!(2))),
            (".spec.list[?(@.n!='x')].v", Some(json!(2))),
            (".spec.list[?(@.z)].v", None),
            (".spec.none", None),
        ];
        for (path, expected) in cases {
            assert_eq!(
                Path::parse(path).unwrap().first(&object).cloned(),
                expected,
                "{path}"
            );
        }
        for path in ["spec", ".a[", ".a[x]", ".a[?(b)]", ".", "..a"] {
            Path::parse(path).unwrap_err();
        }
    }
}
