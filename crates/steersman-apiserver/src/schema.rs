// SPDX-License-Identifier: Apache-2.0
//! Schemas: one representation for built-in kinds and custom resources.
//!
//! A schema is parsed from OpenAPI v3 with the `x-kubernetes-*` extensions. Definitions of built-in kinds refer to each
//! other by name. They are parsed on first use ([`definitions`]), so that the server starts fast.

pub(crate) mod definitions;
pub(crate) mod fill;
pub(crate) mod go;
pub(crate) mod prune;
pub(crate) mod structural;
pub(crate) mod validate;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

/// The JSON type that a schema requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Type {
    #[default]
    Any,
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `x-kubernetes-list-type`: how the items of a list are identified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// Go's serialization of an empty struct field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Go {
    /// Kept as received.
    #[default]
    Pointer,
    /// Written even if empty.
    Always,
    /// Written as null if absent.
    Null,
    /// Omitted if zero.
    NonZero,
}

/// `additionalProperties`: which fields are allowed besides the listed properties.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Absent,
    Any,
    Schema(Box<Schema>),
}

/// One node of a schema.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    pub(crate) r#type: Type,
    pub(crate) format: Option<String>,
    pub(crate) nullable: bool,
    pub(crate) int_or_string: bool,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) properties: BTreeMap<String, Self>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Self>>,
    pub(crate) list: ListType,
    pub(crate) atomic_map: bool,
    pub(crate) default: Option<Value>,
    pub(crate) reference: Option<String>,
    pub(crate) go: Go,
    pub(crate) merge_key: Option<String>,
    pub(crate) patch_strategy: Option<String>,
    pub(crate) required: Vec<String>,
    pub(crate) rules: Option<Box<Rules>>,
}

/// Constraints on values.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) minimum: Option<f64>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) exclusive_maximum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) one_of_values: Option<Vec<Value>>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
}

impl Schema {
    /// Returns a schema that accepts and keeps everything.
    pub(crate) fn anything() -> Self {
        Self {
            preserve_unknown: true,
            ..Self::default()
        }
    }

    /// Parses a schema from its OpenAPI form; ignores unknown keywords.
    pub(crate) fn parse(json: &Value) -> Self {
        let text = |key: &str| json.get(key).and_then(Value::as_str).map(str::to_owned);
        let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or_default();
        let format = text("format");
        let int_or_string = flag("x-kubernetes-int-or-string") || format.as_deref() == Some("int-or-string");
        Self {
            r#type: match json.get("type").and_then(Value::as_str) {
                Some("object") => Type::Object,
                Some("array") => Type::Array,
                Some("string") => Type::String,
                Some("integer") => Type::Integer,
                Some("number") => Type::Number,
                Some("boolean") => Type::Boolean,
                _ => Type::Any,
            },
            nullable: flag("nullable"),
            int_or_string,
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            properties: entries(json, "properties")
                .map(|(name, schema)| (name.clone(), Self::parse(schema)))
                .collect(),
            additional: match json.get("additionalProperties") {
                None | Some(Value::Bool(false)) => Additional::Absent,
                Some(Value::Object(schema)) if !schema.is_empty() => {
                    Additional::Schema(Box::new(Self::parse(&json["additionalProperties"])))
                }
                Some(_) => Additional::Any,
            },
            items: json.get("items").map(|items| Box::new(Self::parse(items))),
            list: match json.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => ListType::Set,
                Some("map") => ListType::Map(strings(json, "x-kubernetes-list-map-keys")),
                _ => ListType::Atomic,
            },
            atomic_map: json.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
            default: json.get("default").filter(|default| !default.is_null()).cloned(),
            reference: text("$ref"),
            go: match json.get("x-go").and_then(Value::as_str) {
                Some("always") => Go::Always,
                Some("null") => Go::Null,
                Some("nonzero") => Go::NonZero,
                _ => Go::Pointer,
            },
            merge_key: text("x-kubernetes-patch-merge-key"),
            patch_strategy: text("x-kubernetes-patch-strategy"),
            required: strings(json, "required"),
            rules: Rules::parse(json).map(Box::new),
            format,
        }
    }

    /// Returns the schema itself, or the definition that it refers to.
    pub(crate) fn resolved(&self) -> &Self {
        match &self.reference {
            Some(name) => definitions::find(name),
            None => self,
        }
    }

    /// Returns the schema of the field `name`, and true if the field is a listed property.
    pub(crate) fn field(&self, name: &str) -> Option<(&Self, bool)> {
        if let Some(property) = self.properties.get(name) {
            return Some((property, true));
        }
        match &self.additional {
            Additional::Schema(schema) => Some((schema, false)),
            Additional::Any | Additional::Absent => None,
        }
    }
}

impl Rules {
    fn parse(json: &Value) -> Option<Self> {
        const KEYS: [&str; 17] = [
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "pattern",
            "minItems",
            "maxItems",
            "uniqueItems",
            "minProperties",
            "maxProperties",
            "enum",
            "allOf",
            "anyOf",
            "not",
        ];
        if json.get("oneOf").is_none() && !KEYS.iter().any(|key| json.get(key).is_some()) {
            return None;
        }
        let float = |key: &str| json.get(key).and_then(Value::as_f64);
        let count = |key: &str| json.get(key).and_then(Value::as_u64);
        let flag = |key: &str| json.get(key).and_then(Value::as_bool).unwrap_or_default();
        let all = |key: &str| {
            json.get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(Schema::parse)
                .collect()
        };
        Some(Self {
            minimum: float("minimum"),
            maximum: float("maximum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: float("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            // The check of a CRD rejects patterns that do not compile.
            pattern: json
                .get("pattern")
                .and_then(Value::as_str)
                .and_then(|pattern| Regex::new(pattern).ok()),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            one_of_values: json.get("enum").and_then(Value::as_array).cloned(),
            all_of: all("allOf"),
            any_of: all("anyOf"),
            one_of: all("oneOf"),
            not: json.get("not").map(|not| Box::new(Schema::parse(not))),
        })
    }
}

fn entries<'a>(json: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    json.get(key).and_then(Value::as_object).into_iter().flatten()
}

fn strings(json: &Value, key: &str) -> Vec<String> {
    json.get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
