// SPDX-License-Identifier: Apache-2.0
//! Deterministic YAML.

use serde::Serialize;
use serde_json::{Map, Value};

/// Returns the objects as documents, with a line `---` between two.
pub(crate) fn documents(objects: &[Value]) -> String {
    let documents: Vec<String> = objects.iter().map(document).collect();
    documents.join("---\n")
}

/// Returns a value as one document. Its fields are in alphabetical order, whatever order the maps of `serde_json` have.
pub(crate) fn document(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("data without maps of other keys is JSON");
    let mut text = serde_saphyr::to_string(&sorted(value)).expect("JSON is YAML");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            let fields = fields.into_iter().map(|(name, value)| (name, sorted(value)));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_that_look_like_other_types_stay_texts() {
        let value = json!({"z": "true", "a": "1", "m": "a: b", "e": "", "n": "0x1f", "t": "a\nb\n", "x": "~", "y": "yes"});
        let read: Value = serde_saphyr::from_str(&document(&value)).unwrap_or_default();
        assert_eq!(read, value);
    }
}
