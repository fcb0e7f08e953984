// SPDX-License-Identifier: Apache-2.0
//! Decodes a request body into the stored form of an object.

use serde_json::Value;

use super::{Call, FieldValidation, Target};
use crate::{
    conversion, json, protobuf,
    resource::{Resource, Version},
    schema::{Schema, definitions, fill, go, prune},
    status::{Failure, FieldError, Qualified, Result},
    store::{Object, metadata_of},
    write::defaults,
};

const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Decodes the body of a create or update.
pub(crate) fn body(
    call: &Call,
    target: &Target,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>)> {
    let kind = &target.resource.kind;
    if target.resource.custom.is_some() && call.header("content-type").starts_with(PROTOBUF) {
        return Err(unknown_format("application/json, application/yaml"));
    }
    let mut duplicates = Vec::new();
    let value = value(call, kind, &mut duplicates)?;
    object(target, value, validation, &duplicates)
}

/// Parses a JSON or YAML body.
pub(crate) fn value(call: &Call, kind: &str, duplicates: &mut Vec<String>) -> Result<Value> {
    check_size(call)?;
    let media = call
        .header("content-type")
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    match media {
        "" | "application/json" => json::parse(&call.body, duplicates).map_err(|error| {
            let shown = if call.body.is_empty() {
                "<empty>".into()
            } else {
                String::from_utf8_lossy(&call.body)
            };
            let message = format!("couldn't get version/kind; json parse error: {error} ({shown})");
            Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): {message}"
            ))
        }),
        "application/yaml" => json::parse_yaml(&call.body).map_err(|error| {
            let message =
                format!("the object provided is unrecognized (must be of type {kind}): yaml: {error}");
            Failure::bad_request(message)
        }),
        PROTOBUF => protobuf::parse(&call.body).map_err(|error| {
            let message = format!("the object provided is unrecognized (must be of type {kind}): {error}");
            Failure::bad_request(message)
        }),
        _ => Err(unknown_format(ACCEPTED)),
    }
}

fn unknown_format(accepted: &str) -> Failure {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {accepted}"
    );
    Failure::unsupported_media_type(message)
}

pub(crate) fn check_size(call: &Call) -> Result<()> {
    if call.body.len() > BODY_LIMIT {
        return Err(Failure::too_large(format!(
            "Request entity too large: limit is {BODY_LIMIT}"
        )));
    }
    Ok(())
}

/// Converts JSON to the stored form: checks the kind, decodes fields, drops unknown fields and sets defaults.
pub(crate) fn object(
    target: &Target,
    value: Value,
    validation: FieldValidation,
    duplicates: &[String],
) -> Result<(Object, Vec<String>)> {
    let mut object = match value {
        Value::Object(object) => object,
        value => return Err(not_an_object(target, &value)),
    };
    check_kind(target, &mut object)?;
    keep_reset(&mut object);
    let mut unknown = Vec::new();
    let (resource, version) = (&target.resource, target.version());
    if resource.custom.is_some() {
        custom(resource, version, &mut object, &mut unknown)?;
    } else {
        builtin(resource, version, &mut object, &mut unknown)?;
    }
    let complaints = complaints(&unknown, duplicates, resource.custom.is_some());
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => complaints,
        FieldValidation::Strict if complaints.is_empty() => complaints,
        FieldValidation::Strict => {
            let list = complaints.join(", ");
            let kind = &resource.kind;
            let message = format!(
                "{kind} in version {:?} cannot be handled as a {kind}: strict decoding error: {list}",
                version.name
            );
            return Err(Failure::bad_request(message));
        }
    };
    Ok((object, warnings))
}

fn not_an_object(target: &Target, value: &Value) -> Failure {
    let kind = &target.resource.kind;
    let wanted = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let start: String = value
        .to_string()
        .bytes()
        .take(30)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let error = format!(
        "json: cannot unmarshal {} into Go value of type {wanted} ({start})",
        go_kind(value)
    );
    Failure::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {error}"
    ))
}

/// Keeps an empty `managedFields` list, which resets the managers; decoding would drop it.
fn keep_reset(object: &mut Object) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata")
        && metadata
            .get("managedFields")
            .and_then(Value::as_array)
            .is_some_and(Vec::is_empty)
    {
        metadata.insert("managedFields".to_owned(), serde_json::json!([{}]));
    }
}

/// Returns Go's name for the type of a JSON value.
pub(crate) fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn complaints(unknown: &[String], duplicates: &[String], duplicates_first: bool) -> Vec<String> {
    let unknown = unknown.iter().map(|path| format!("unknown field {path:?}"));
    let duplicates = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    if duplicates_first {
        duplicates.chain(unknown).collect()
    } else {
        unknown.chain(duplicates).take(json::COMPLAINTS).collect()
    }
}

fn check_kind(target: &Target, object: &mut Object) -> Result<()> {
    let mut taken = |key: &str| match object.remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let (api_version, kind) = (taken("apiVersion"), taken("kind"));
    let (expected, expected_kind) = (target.api_version(), &target.resource.kind);
    if target.resource.custom.is_some() {
        if kind.is_empty() {
            object.insert("apiVersion".to_owned(), Value::from(api_version));
            let shown = Value::Object(object.clone()).to_string();
            let start: String = shown.chars().take(30).collect();
            return Err(Failure::bad_request(format!(
                "the object provided is unrecognized (must be of type {expected_kind}): Object 'Kind' is missing in '{shown}' ({start} ...)"
            )));
        }
        if api_version != expected {
            return Err(Failure::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({expected})"
            )));
        }
        if kind != *expected_kind {
            let error = FieldError::invalid(
                "kind",
                &Value::from(kind.as_str()),
                &format!("must be {expected_kind}"),
            );
            let name = metadata_of(object)
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default();
            return Err(Failure::invalid(
                Qualified {
                    group: &target.resource.group,
                    name: &kind,
                },
                name,
                &[error],
            ));
        }
        return Ok(());
    }
    let matches =
        (kind.is_empty() || kind == *expected_kind) && (api_version.is_empty() || api_version == expected);
    if !matches {
        let (shown, api_version) = (
            if kind.is_empty() { expected_kind } else { &kind },
            if api_version.is_empty() {
                &expected
            } else {
                &api_version
            },
        );
        let version = api_version.rsplit('/').next().unwrap_or_default();
        return Err(Failure::bad_request(format!(
            "{shown} in version {version:?} cannot be handled as a {expected_kind}: no kind {shown:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
        )));
    }
    Ok(())
}

fn builtin(
    resource: &Resource,
    version: &Version,
    object: &mut Object,
    unknown: &mut Vec<String>,
) -> Result<()> {
    let mut value = Value::Object(std::mem::take(object));
    let kind = &resource.kind;
    go::decode(&version.schema, &mut value, unknown).map_err(|error| {
        Failure::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {kind}: {error}",
            version.name
        ))
    })?;
    if let Value::Object(decoded) = value {
        *object = decoded;
    }
    object
        .entry("metadata")
        .or_insert_with(|| Value::Object(Object::new()));
    let index = resource
        .versions
        .iter()
        .position(|known| known.name == version.name)
        .unwrap_or_default();
    conversion::to_storage(resource, index, object);
    defaults::apply(resource, object);
    Ok(())
}

fn custom(
    resource: &Resource,
    version: &Version,
    object: &mut Object,
    unknown: &mut Vec<String>,
) -> Result<()> {
    decode_metadata(object, unknown).map_err(|error| {
        Failure::bad_request(format!(
            "{} in version {:?} cannot be handled as a {0}: {error}",
            resource.kind, version.name
        ))
    })?;
    normalize(&version.schema, object, unknown);
    Ok(())
}

/// Normalizes the metadata of a custom resource.
pub(crate) fn decode_metadata(
    object: &mut Object,
    unknown: &mut Vec<String>,
) -> std::result::Result<(), String> {
    let mut metadata = object
        .remove("metadata")
        .filter(|metadata| !metadata.is_null())
        .unwrap_or_else(|| Value::Object(Object::new()));
    let mut unknown_metadata = Vec::new();
    go::decode(definitions::object_meta(), &mut metadata, &mut unknown_metadata)?;
    unknown.extend(
        unknown_metadata
            .into_iter()
            .map(|path| format!("metadata.{path}")),
    );
    object.insert("metadata".to_owned(), metadata);
    Ok(())
}

/// Prunes unknown fields and sets defaults by a structural schema.
pub(crate) fn normalize(schema: &Schema, object: &mut Object, unknown: &mut Vec<String>) {
    prune::prune(schema, object, unknown);
    fill::drop_nulls_of(schema, object);
    fill::defaults_of(schema, object);
}
