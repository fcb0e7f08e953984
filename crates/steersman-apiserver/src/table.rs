// SPDX-License-Identifier: Apache-2.0
//! Objects as rows of a table, which is what `kubectl get` asks for.
//!
//! Columns of built-in kinds come from the real server's (`data/columns.txt`), those of custom resources from their
//! definitions. Kinds whose columns are not known have a name and a time, as with the real server.

mod cells;
mod cluster;
mod human;
mod jsonpath;
mod network;
mod pod;

use std::{collections::HashMap, sync::LazyLock, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    resource::{Resource, Version},
    store::{Object, metadata_of},
    write::defaults::TEMPLATE_GENERATION,
};

pub(crate) use jsonpath::Path;

/// Written by `data/generate.py`.
static TEXT: &str = include_str!("../data/columns.txt");

/// A column of a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Column {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    format: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    priority: i64,
    /// Where the value of a custom resource's column is.
    #[serde(default, skip_serializing, rename = "jsonPath")]
    path: String,
}

/// How much of an object comes with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

static COLUMNS: LazyLock<HashMap<&'static str, Vec<Column>>> = LazyLock::new(|| {
    let rows = TEXT.lines().filter_map(|line| line.split_once('\t'));
    rows.map(|(name, row)| {
        (
            name,
            serde_json::from_str(row).expect("the generated columns are JSON"),
        )
    })
    .collect()
});

/// The texts of name and age are everywhere the same.
fn described(index: usize) -> String {
    let accounts = COLUMNS.get("serviceaccounts");
    accounts
        .and_then(|columns| columns.get(index))
        .map_or_else(String::new, |column| column.description.clone())
}

fn column(name: &str, kind: &str, format: &str, description: String) -> Column {
    Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description,
        priority: 0,
        path: String::new(),
    }
}

/// The columns that a definition asks for, but for the name; the age if it asks for none.
pub(crate) fn custom_columns(version: &Value) -> Vec<Column> {
    let asked = version
        .get("additionalPrinterColumns")
        .cloned()
        .unwrap_or_default();
    let mut columns: Vec<Column> = serde_json::from_value(asked).unwrap_or_default();
    for column in &mut columns {
        if column.description.is_empty() {
            column.description = format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.path
            );
        }
    }
    if columns.is_empty() {
        let mut age = column("Age", "date", "", described(1));
        age.path = ".metadata.creationTimestamp".to_owned();
        columns.push(age);
    }
    columns
}

/// The columns of a kind, as clients see them.
pub(crate) fn columns(resource: &Resource, version: &Version) -> Value {
    if resource.custom.is_some() {
        let name = column("Name", "string", "name", described(0));
        let all: Vec<&Column> = std::iter::once(&name).chain(&version.columns).collect();
        return json!(all);
    }
    match COLUMNS.get(known_as(resource).as_str()) {
        Some(columns) => json!(columns),
        None => json!([
            column("Name", "string", "name", described(0)),
            column("Created At", "date", "", described(1)),
        ]),
    }
}

/// True if a kind has columns of its own.
pub(crate) fn is_printed(resource: &Resource) -> bool {
    resource.custom.is_some() || COLUMNS.contains_key(known_as(resource).as_str())
}

fn known_as(resource: &Resource) -> String {
    match resource.group.as_str() {
        "" | "events.k8s.io" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    }
}

/// The row of an object: `stored` in its stored form, `shown` in the version that is asked for.
pub(crate) fn row(
    resource: &Resource,
    version: &Version,
    stored: &Object,
    shown: &Object,
    include: Include,
    now: SystemTime,
) -> Value {
    let cells = if resource.custom.is_some() {
        custom_cells(version, shown, now)
    } else {
        cells::of(&known_as(resource), stored, now).unwrap_or_else(|| default_cells(stored))
    };
    let mut row = json!({"cells": cells});
    if known_as(resource) == "pods"
        && let Some(condition) = pod::row_condition(stored)
    {
        row["conditions"] = json!([condition]);
    }
    let api_version = || resource.api_version(&version.name);
    let mut metadata = metadata_of(shown).clone();
    if resource.is("apps", "daemonsets")
        && let Some(Value::Object(annotations)) = metadata.get_mut("annotations")
    {
        // A number in the form that the real server makes its rows from.
        annotations.remove(TEMPLATE_GENERATION);
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    match include {
        Include::None => row["object"] = Value::Null,
        Include::Metadata => {
            row["object"] = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            });
        }
        Include::Object => {
            let mut object = Value::Object(shown.clone());
            object["kind"] = json!(resource.kind);
            object["apiVersion"] = json!(api_version());
            row["object"] = object;
        }
    }
    row
}

fn default_cells(object: &Object) -> Vec<Value> {
    let of = |key: &str| metadata_of(object).get(key).cloned().unwrap_or_default();
    vec![of("name"), of("creationTimestamp")]
}

fn custom_cells(version: &Version, object: &Object, now: SystemTime) -> Vec<Value> {
    let name = metadata_of(object).get("name").cloned().unwrap_or_default();
    let whole = Value::Object(object.clone());
    let cell = |column: &Column| {
        let found = Path::parse(&column.path).ok()?.first(&whole)?.clone();
        custom_cell(&column.kind, &found, now)
    };
    let rest = version
        .columns
        .iter()
        .map(|column| cell(column).unwrap_or_default());
    std::iter::once(name).chain(rest).collect()
}

/// A value in the type of its column; nothing if it has another.
fn custom_cell(kind: &str, value: &Value, now: SystemTime) -> Option<Value> {
    match (kind, value) {
        ("string", Value::String(_)) => Some(value.clone()),
        ("string", Value::Null) => None,
        ("string", other) => Some(json!(other.to_string())),
        ("integer", Value::Number(number)) => {
            #[expect(clippy::cast_possible_truncation, reason = "Go cuts the fraction off as well")]
            let whole = number
                .as_i64()
                .or_else(|| number.as_f64().map(|float| float as i64));
            whole.map(Value::from)
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => Some(value.clone()),
        ("date", Value::String(text)) => Some(match text.parse::<jiff::Timestamp>() {
            Ok(time) => json!(human::since(SystemTime::from(time), now)),
            Err(_) => json!("<invalid>"),
        }),
        _ => None,
    }
}
