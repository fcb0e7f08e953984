// SPDX-License-Identifier: Apache-2.0
//! Validation of names, labels and annotations.

use serde_json::{Map, Value};

use crate::status::FieldError;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// The format of an object's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NameRule {
    #[default]
    Subdomain,
    Label,
    Label1035,
    PathSegment,
}

impl NameRule {
    /// Returns the errors in `name`; with `prefix`, the name is a `generateName` and can end in `-`.
    pub(crate) fn check(self, name: &str, prefix: bool) -> Vec<String> {
        let masked;
        let name = if prefix && name.len() > 1 && name.ends_with('-') {
            masked = format!("{}a", &name[..name.len() - 1]);
            masked.as_str()
        } else {
            name
        };
        match self {
            Self::Subdomain => subdomain(name),
            Self::Label if name.contains('.') => vec!["must not contain dots".to_owned()],
            Self::Label => bounded(name, 63, is_label(name), LABEL),
            Self::Label1035 => bounded(
                name,
                63,
                is_label(name) && !name.starts_with(|c: char| c.is_ascii_digit()),
                LABEL_1035,
            ),
            Self::PathSegment => path_segment(name),
        }
    }
}

fn bounded(text: &str, max: usize, fits: bool, rule: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > max {
        errors.push(format!("must be no more than {max} bytes"));
    }
    if !fits {
        errors.push(rule.to_owned());
    }
    errors
}

/// Returns the errors in a DNS subdomain.
pub(crate) fn subdomain(name: &str) -> Vec<String> {
    bounded(name, 253, name.split('.').all(is_label), SUBDOMAIN)
}

pub(crate) fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.first().is_some_and(|b| inner(*b))
        && bytes.last().is_some_and(|b| inner(*b))
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

fn path_segment(name: &str) -> Vec<String> {
    match name {
        "." => return vec!["may not be '.'".to_owned()],
        ".." => return vec!["may not be '..'".to_owned()],
        _ => {}
    }
    ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

fn is_name_part(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|b| edge(b) || matches!(b, b'-' | b'_' | b'.'))
}

/// Returns the errors in a qualified name such as `example.com/part`.
pub(crate) fn qualified(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    subdomain(prefix)
                        .into_iter()
                        .map(|error| format!("prefix part {error}")),
                );
            }
            name
        }
        _ => {
            return vec![
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')".to_owned(),
            ];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        errors.push(QUALIFIED.to_owned());
    }
    errors
}

/// Returns the errors in a label value.
pub(crate) fn label_value(value: &str) -> Vec<String> {
    bounded(value, 63, value.is_empty() || is_name_part(value), LABEL_VALUE)
}

/// Checks labels, annotations, finalizers and owner references.
pub(crate) fn check_metadata(metadata: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    for (key, value) in object(metadata, "labels") {
        for error in qualified(key) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                &Value::from(key.as_str()),
                &error,
            ));
        }
        let value = value.as_str().unwrap_or_default();
        for error in label_value(value) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                &Value::from(value),
                &error,
            ));
        }
    }
    let mut size = 0;
    for (key, value) in object(metadata, "annotations") {
        size += key.len() + value.as_str().map_or(0, str::len);
        for error in qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                &Value::from(key.as_str()),
                &error,
            ));
        }
    }
    if size > 256 * 1024 {
        errors.push(FieldError::too_long("metadata.annotations", 256 * 1024));
    }
    let owners = metadata
        .get("ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let mut controller: Option<String> = None;
    for (index, owner) in owners.enumerate() {
        let at = |field: &str| format!("metadata.ownerReferences[{index}].{field}");
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            let value = owner.get(field).and_then(Value::as_str).unwrap_or_default();
            if value.is_empty() {
                errors.push(if field == "apiVersion" {
                    FieldError::invalid(at(field), &Value::from(""), detail)
                } else {
                    FieldError::required(at(field), detail)
                });
            }
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
            let this = format!("{}/{}", text("kind"), text("name"));
            if let Some(other) = &controller {
                let message = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {other} and {this}"
                );
                errors.push(FieldError::invalid_text(
                    "metadata.ownerReferences",
                    &go_owners(metadata),
                    &message,
                ));
            }
            controller = Some(this);
        }
    }
    let finalizers = metadata
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    for (index, finalizer) in finalizers.enumerate() {
        let at = format!("metadata.finalizers[{index}]");
        for error in qualified(finalizer) {
            errors.push(FieldError::invalid(at.clone(), &Value::from(finalizer), &error));
        }
        if !finalizer.contains('/') && !matches!(finalizer, "orphan" | "foregroundDeletion" | "kubernetes") {
            let message = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(at, &Value::from(finalizer), message));
        }
    }
}

fn object<'a>(metadata: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    metadata.get(key).and_then(Value::as_object).into_iter().flatten()
}

/// Formats owner references with their fields in Go's order.
fn go_owners(metadata: &Map<String, Value>) -> String {
    let owners = metadata
        .get("ownerReferences")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let shown: Vec<String> = owners
        .map(|owner| {
            let fields = [
                "apiVersion",
                "kind",
                "name",
                "uid",
                "controller",
                "blockOwnerDeletion",
            ];
            let fields: Vec<String> = fields
                .iter()
                .filter_map(|field| Some(format!("\"{field}\":{}", owner.get(field)?)))
                .collect();
            format!("{{{}}}", fields.join(","))
        })
        .collect();
    format!("[{}]", shown.join(","))
}
