// SPDX-License-Identifier: Apache-2.0
//! Label and field selectors.

mod structured;

use serde_json::{Map, Value};

use crate::{
    conversion, names,
    resource::{Resource, Version, at},
    store::{Object, Stored, metadata_of},
};

/// A selector of objects by labels and fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    pub(crate) labels: Vec<Requirement>,
    pub(crate) fields: Vec<FieldRequirement>,
}

impl Selector {
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        if self.is_empty() {
            return true;
        }
        let labels = metadata_of(object).get("labels").and_then(Value::as_object);
        self.labels.iter().all(|requirement| requirement.matches(labels))
            && self.fields.iter().all(|field| field.matches(object))
    }

    /// Matches as [`Self::matches`] does, and decodes only what the requirements need.
    pub(crate) fn sees(&self, stored: &Stored) -> bool {
        if self.is_empty() {
            return true;
        }
        if let Some(object) = stored.at_hand() {
            return self.matches(&object);
        }
        let of_head =
            |field: &FieldRequirement| matches!(field.field.as_str(), "metadata.name" | "metadata.namespace");
        if !self.fields.iter().all(of_head) {
            return self.matches(&stored.object());
        }
        let head = stored.head().metadata;
        let label = |key: &str| head.labels.as_ref()?.get(key).map(String::as_str);
        let field = |field: &FieldRequirement| {
            let own = if field.field == "metadata.name" {
                &head.name
            } else {
                &head.namespace
            };
            (*own == field.value) != field.negated
        };
        self.labels
            .iter()
            .all(|requirement| requirement.allows(label(&requirement.key)))
            && self.fields.iter().all(field)
    }

    /// Returns the name of a `metadata.name=x` requirement.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields
            .iter()
            .find(|field| field.field == "metadata.name" && !field.negated)
            .map(|field| field.value.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    Absent,
    GreaterThan,
    LessThan,
}

/// One requirement on labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        let value = labels.and_then(|labels| labels.get(&self.key));
        self.allows(value.and_then(Value::as_str))
    }

    fn allows(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|wanted| wanted == value);
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = self.values.first().and_then(|value| number(value));
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::Absent => value.is_none(),
            Operator::GreaterThan => value
                .and_then(number)
                .zip(bound)
                .is_some_and(|(value, bound)| value > bound),
            Operator::LessThan => value
                .and_then(number)
                .zip(bound)
                .is_some_and(|(value, bound)| value < bound),
        }
    }
}

/// Parses a label selector.
///
/// # Errors
/// Returns the message of the real server's parser.
pub(crate) fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let tokens = tokens(text);
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
    };
    parser.selector()
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Symbol(&'static str),
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Symbol(symbol) => symbol,
            Self::End => "",
        }
    }
}

const SYMBOLS: [&str; 10] = ["==", "!=", "=", "!", ",", "(", ")", ">", "<", ""];

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(symbol) = SYMBOLS
            .iter()
            .find(|symbol| !symbol.is_empty() && rest.starts_with(**symbol))
        {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
        } else {
            let end = rest
                .find(|c: char| c.is_whitespace() || "=!,()><".contains(c))
                .unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    tokens.push(Token::End);
    tokens
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Symbol("!") => {
                    requirements.push(
                        self.requirement()
                            .map_err(|error| format!("unable to parse requirement: {error}"))?,
                    );
                    match self.next() {
                        Token::End => return Ok(requirements),
                        Token::Symbol(",") => {
                            if !matches!(self.peek(), Token::Word(_) | Token::Symbol("!")) {
                                return Err(format!(
                                    "found '{}', expected: identifier after ','",
                                    self.peek().text()
                                ));
                            }
                        }
                        other => {
                            return Err(format!(
                                "found '{}', expected: ',' or 'end of string'",
                                other.text()
                            ));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = *self.peek() == Token::Symbol("!");
        if absent {
            self.next();
        }
        let key = match self.next() {
            Token::Word(word) => word,
            other => return Err(format!("found '{}', expected: identifier", other.text())),
        };
        let errors = names::qualified(&key);
        if !errors.is_empty() {
            let error = errors
                .join("; ")
                .replacen("a qualified name must", "a valid label key must", 1);
            return Err(format!("<nil>: Invalid value: {key:?}: {error}"));
        }
        if absent {
            return Ok(Requirement {
                key,
                operator: Operator::Absent,
                values: Vec::new(),
            });
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(Requirement {
                key,
                operator: Operator::Exists,
                values: Vec::new(),
            });
        }
        let token = self.next();
        let operator = match token.text() {
            "=" | "==" | "in" => Operator::In,
            "!=" | "notin" => Operator::NotIn,
            ">" => Operator::GreaterThan,
            "<" => Operator::LessThan,
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = if matches!(token, Token::Word(_)) {
            self.values()?
        } else {
            vec![self.exact()?]
        };
        if matches!(operator, Operator::In | Operator::NotIn) {
            for value in &values {
                if let Some(error) = names::label_value(value).first() {
                    return Err(format!("values[0][{key}]: Invalid value: {value:?}: {error}"));
                }
            }
        } else if values.first().is_none_or(|value| value.parse::<i64>().is_err()) {
            return Err(format!(
                "values[0][{key}]: Invalid value: {:?}: for 'Gt', 'Lt' operators, the value must be an integer",
                values.first().map_or("", String::as_str)
            ));
        }
        Ok(Requirement {
            key,
            operator,
            values,
        })
    }

    fn exact(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(String::new()),
            _ => match self.next() {
                Token::Word(word) => Ok(word),
                other => Err(format!("found '{}', expected: identifier", other.text())),
            },
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                Token::Word(word) => {
                    values.push(word);
                    match self.next() {
                        Token::Symbol(",") => {
                            if *self.peek() == Token::Symbol(")") {
                                values.push(String::new());
                            }
                        }
                        Token::Symbol(")") => return Ok(values),
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                Token::Symbol(",") => values.push(String::new()),
                Token::Symbol(")") => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
    }
}

/// One requirement on fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldRequirement {
    field: String,
    value: String,
    negated: bool,
}

impl FieldRequirement {
    /// Selects the object with exactly this name.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            field: "metadata.name".to_owned(),
            value: name.to_owned(),
            negated: false,
        }
    }

    fn matches(&self, object: &Object) -> bool {
        let path: Vec<&str> = self.field.split('.').collect();
        let actual = match at(object, &path) {
            _ if self.field == "source" => event_source(object).to_owned(),
            _ if self.field == "status.successful" => {
                at(object, &["status", "succeeded"]).map_or_else(|| "0".to_owned(), ToString::to_string)
            }
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => absent(&self.field).to_owned(),
            Some(other) => other.to_string(),
        };
        (actual == self.value) != self.negated
    }
}

/// Returns the reporting component of an Event, from the deprecated field or the new one.
fn event_source(object: &Object) -> &str {
    let fields: [&[&str]; 2] = [&["source", "component"], &["reportingComponent"]];
    let texts = fields.iter().filter_map(|path| at(object, path)?.as_str());
    texts
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

/// Returns the value of a selectable field that is absent.
fn absent(field: &str) -> &'static str {
    match field {
        "spec.unschedulable" | "spec.hostNetwork" => "false",
        "status.replicas" => "0",
        _ => "",
    }
}

/// Parses a field selector and checks that the kind supports its fields.
///
/// # Errors
/// Returns the message of the real server's parser.
pub(crate) fn parse_fields(
    text: &str,
    resource: &Resource,
    version: &Version,
) -> Result<Vec<FieldRequirement>, String> {
    let mut requirements = field_requirements(text)?;
    for requirement in &mut requirements {
        check_selectable(&requirement.field, resource, version)?;
        conversion::field_to_storage(resource, &mut requirement.field);
    }
    Ok(requirements)
}

/// Returns the only name that a field selector matches, if it is valid in a path.
pub(crate) fn exact_name(text: &str) -> Option<String> {
    let selector = Selector {
        labels: Vec::new(),
        fields: field_requirements(text).ok()?,
    };
    let name = selector.name()?;
    let is_segment = !matches!(name, "." | "..") && !name.contains(['/', '%']);
    is_segment.then(|| name.to_owned())
}

fn field_requirements(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let mut requirements = Vec::new();
    let mut parts = split_fields(text);
    parts.sort_unstable();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let found = ["!=", "==", "="]
            .iter()
            .filter_map(|op| part.find(op).map(|at| (at, *op)))
            .min_by_key(|(at, op)| (*at, 2 - op.len().min(2)));
        let Some((at, operator)) = found else {
            return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
        };
        let (field, value) = (&part[..at], &part[at + operator.len()..]);
        let value = unescape(value)?;
        requirements.push(FieldRequirement {
            field: field.to_owned(),
            value,
            negated: operator == "!=",
        });
    }
    // The real server ignores a requirement with an empty field and an empty value.
    requirements.retain(|requirement| !requirement.field.is_empty() || !requirement.value.is_empty());
    Ok(requirements)
}

fn split_fields(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match c {
            ',' if !escaped => parts.push(String::new()),
            _ => parts.last_mut().expect("there is always a last part").push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    ));
                }
            },
            ',' | '=' => {
                let number = u32::from(c);
                return Err(format!(
                    "invalid field selector: unescaped character in value: {number}"
                ));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

fn check_selectable(field: &str, resource: &Resource, version: &Version) -> Result<(), String> {
    let common = field == "metadata.name" || field == "metadata.namespace";
    if common
        || resource.strategy.selectable.contains(&field)
        || version.selectable.iter().any(|known| known == field)
    {
        return Ok(());
    }
    Err(
        if resource.custom.is_some() || !resource.strategy.selectable.is_empty() {
            format!("field label not supported: {field}")
        } else {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(selector: &str, labels: &Value) -> bool {
        let selector = Selector {
            labels: parse_labels(selector).unwrap(),
            fields: Vec::new(),
        };
        selector.matches(json!({"metadata": {"labels": labels}}).as_object().unwrap())
    }

    #[test]
    fn set_and_equality_requirements_select_by_label() {
        let labels = json!({"app": "web", "tier": "front"});
        for yes in [
            "app=web",
            "app==web",
            "app in (web,db)",
            "app",
            "!missing",
            "app!=db",
            "missing!=x",
            "missing notin (x)",
            "app=web,tier=front",
            "",
        ] {
            assert!(matches(yes, &labels), "{yes}");
        }
        for no in [
            "app=db",
            "app notin (web)",
            "!app",
            "missing",
            "app=web,tier=back",
            "app in (db)",
        ] {
            assert!(!matches(no, &labels), "{no}");
        }
    }

    #[test]
    fn malformed_label_selectors_are_refused_as_the_real_server_does() {
        for (text, error) in [
            (
                "a===b",
                "unable to parse requirement: found '=', expected: identifier",
            ),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a=b=c d", "found '=', expected: ',' or 'end of string'"),
        ] {
            assert_eq!(parse_labels(text).unwrap_err(), error, "{text}");
        }
    }
}
