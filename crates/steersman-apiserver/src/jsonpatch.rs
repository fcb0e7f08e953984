// SPDX-License-Identifier: Apache-2.0
//! JSON patches as the real server's library applies them.
//!
//! That library departs from RFC 6902, which the json-patch crate follows exactly: in an object, a missing field counts
//! as null for `replace`, `test` and `copy`, and so does a missing `value`.
//!
//! # Limits
//! A patch copies at most 3 MiB in total, as on the real server, and nests values no deeper than bodies. Otherwise a
//! few lines could double an object forty times.

use serde_json::Value;

use crate::json::{DEPTH, is_deeper};

/// Maximum number of JSON bytes that one patch copies.
const COPIED: usize = 3 * 1024 * 1024;

/// Applies a patch.
///
/// # Errors
/// Returns the library's text about the first operation that does not apply.
pub(crate) fn apply(document: &Value, operations: &[Value]) -> Result<Value, String> {
    let mut document = document.clone();
    let mut room = COPIED;
    for operation in operations {
        step(&mut document, operation, &mut room).ok_or_else(|| complaint(&document, operation))?;
    }
    Ok(document)
}

/// Applies one operation; returns `None` if it does not apply.
fn step(document: &mut Value, operation: &Value, room: &mut usize) -> Option<()> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let value = operation.get("value").cloned().unwrap_or_default();
    let path = text("path")?;
    match text("op")? {
        "add" => put(document, path, value, true),
        "replace" => put(document, path, value, false),
        "remove" => remove(document, path).map(drop),
        "test" => (*get(document, path)? == value).then_some(()),
        "copy" => {
            // The whole document cannot be copied.
            let from = text("from").filter(|from| !from.is_empty())?;
            let copied = get(document, from)?.clone();
            *room = room.checked_sub(copied.to_string().len())?;
            put(document, path, copied, true)
        }
        "move" => {
            let moved = remove(document, text("from")?)?;
            put(document, path, moved, true)
        }
        _ => None,
    }
}

/// Says why an operation does not apply.
fn complaint(document: &Value, operation: &Value) -> String {
    let text = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or_default();
    let (op, path) = (text("op"), text("path"));
    let has_parent = |path: &str| {
        let parent = split(path).and_then(|(parent, _)| document.pointer(parent));
        parent.is_some_and(|parent| parent.is_object() || parent.is_array())
    };
    let last = |path: &str| split(path).map_or_else(String::new, |(_, last)| last);
    match op {
        "add" | "remove" | "replace" if !has_parent(path) => {
            let shown = if op == "replace" {
                path.to_owned()
            } else {
                format!("{path:?}")
            };
            format!("{op} operation does not apply: doc is missing path: {shown}: missing value")
        }
        "add" => format!(
            "error in add for path: '{path}': Unable to access invalid index: {}",
            last(path)
        ),
        "remove" => format!(
            "error in remove for path: '{path}': Unable to remove nonexistent key: {}: missing value",
            last(path)
        ),
        "replace" => format!("replace operation does not apply: doc is missing key: {path}: missing value"),
        "test" => format!("testing value {path} failed: test failed"),
        "copy" | "move" => {
            let from = text("from");
            format!("{op} operation does not apply: doc is missing from path: {from}: missing value")
        }
        _ => format!("Unexpected kind: {op}"),
    }
}

/// Splits a pointer into its parent and its last part.
fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn index(part: &str, length: usize) -> Option<usize> {
    // Negative numbers count from the end, as in the library.
    let number: i64 = part.parse().ok()?;
    let length = i64::try_from(length).ok()?;
    let number = if number < 0 { number + length } else { number };
    usize::try_from(number)
        .ok()
        .filter(|index| *index < usize::try_from(length).unwrap_or_default())
}

fn get<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    static MISSING: Value = Value::Null;
    if path.is_empty() {
        return Some(document);
    }
    let (parent, last) = split(path)?;
    match document.pointer(parent)? {
        Value::Object(fields) => Some(fields.get(&last).unwrap_or(&MISSING)),
        Value::Array(items) => items.get(index(&last, items.len())?),
        _ => None,
    }
}

fn put(document: &mut Value, path: &str, value: Value, insert: bool) -> Option<()> {
    let above = path.bytes().filter(|byte| *byte == b'/').count();
    if is_deeper(&value, DEPTH.checked_sub(above)?) {
        return None;
    }
    if path.is_empty() {
        *document = value;
        return Some(());
    }
    let (parent, last) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(fields) => {
            fields.insert(last, value);
        }
        Value::Array(items) if insert && last == "-" => items.push(value),
        Value::Array(items) if insert => {
            let at = index(&last, items.len() + 1)?;
            items.insert(at, value);
        }
        Value::Array(items) => {
            let at = index(&last, items.len())?;
            items[at] = value;
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(fields) => fields.remove(&last),
        Value::Array(items) => {
            let at = index(&last, items.len())?;
            Some(items.remove(at))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_field_counts_as_null() {
        let document = json!({"a": {"b": 1}, "l": [1, 2]});
        let patch = |operations: Value| apply(&document, operations.as_array().unwrap());
        assert!(patch(json!([{"op": "test", "path": "/a/none"}])).is_ok());
        assert!(patch(json!([{"op": "test", "path": "/a/b", "value": 2}])).is_err());
        assert!(patch(json!([{"op": "remove", "path": "/a/none"}])).is_err());
        assert!(patch(json!([{"op": "add", "path": "/none/x", "value": 1}])).is_err());
        let patched = patch(
            json!([{"op": "replace", "path": "/a/c", "value": 2}, {"op": "add", "path": "/l/-", "value": 3}]),
        );
        assert_eq!(patched.unwrap(), json!({"a": {"b": 1, "c": 2}, "l": [1, 2, 3]}));
        let moved =
            patch(json!([{"op": "move", "from": "/a/b", "path": "/x"}, {"op": "remove", "path": "/l/0"}]));
        assert_eq!(moved.unwrap(), json!({"a": {}, "l": [2], "x": 1}));
    }

    #[test]
    fn repeated_copies_are_bounded_in_size_and_depth() {
        let wide = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let deep = json!({"op": "copy", "from": "/o", "path": "/o/o"});
        let patched = |operation: &Value, count: usize| {
            let document = json!({"a": ["0123456789"], "o": {}});
            apply(&document, &vec![operation.clone(); count])
        };
        assert!(patched(&wide, 3).is_ok());
        assert!(patched(&deep, 3).is_ok());
        assert!(patched(&wide, 40).is_err());
        assert!(patched(&deep, 110).is_err());
        let deepen = |depth: usize| {
            let path = "/a".repeat(depth);
            json!({"op": "add", "path": path, "value": {}})
        };
        let operations: Vec<Value> = (1..=DEPTH).map(deepen).collect();
        assert!(apply(&json!({}), &operations[..DEPTH - 1]).is_ok());
        assert!(apply(&json!({}), &operations).is_err());
    }
}
