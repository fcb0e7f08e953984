// SPDX-License-Identifier: Apache-2.0
//! Results of a full parser, for tests that compare ours with it.
//!
//! The two can differ for:
//! * JSON that serde_json rejects in parts that need no inspection: invalid numbers, invalid UTF-8 or control characters in a
//!   content field, nesting deeper than 128. We accept it as it is, and decoding rejects it.
//! * An empty name, which counts as missing.
//! * A kind or version that needs escapes, which is rejected.
//! * The last digit of a fraction in an object that had to be parsed and written again.

use std::sync::Arc;

use serde_json::{Value, json};

use super::list::ListSplitter;
use crate::{Object, Transform};

/// Parses the bytes fully, and drops `managedFields`; `None` if they are no object with a name.
fn parsed(bytes: &[u8]) -> Option<Value> {
    without_managed_fields(serde_json::from_slice(bytes).ok()?)
}

/// Drops `managedFields`; `None` if the value is no object with a name.
pub(super) fn without_managed_fields(mut value: Value) -> Option<Value> {
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("managedFields");
    let name = metadata.get("name")?.as_str()?;
    (!name.is_empty()).then_some(value)
}

/// Returns true if the header fields have their Kubernetes types.
pub(super) fn has_usual_types(value: &Value) -> bool {
    let metadata = &value["metadata"];
    let texts = ["namespace", "uid", "resourceVersion"].map(|key| &metadata[key]);
    let maps = ["labels", "annotations"].map(|key| &metadata[key]);
    let top = ["kind", "apiVersion"].map(|key| &value[key]);
    let needs_escapes = |text: &str| json!(text).to_string().len() != text.len() + 2;
    let is_text = |value: &Value| value.is_null() || value.is_string();
    let is_plain = |value: &Value| is_text(value) && !value.as_str().is_some_and(needs_escapes);
    is_text(&metadata["name"])
        && texts.into_iter().all(is_text)
        && top.into_iter().all(is_plain)
        && maps.into_iter().all(|value| value.is_null() || value.is_object())
        && (metadata["ownerReferences"].is_null() || metadata["ownerReferences"].is_array())
}

/// Creates an object from the bytes, and compares it with the result of a full parser.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let taken = Object::from_slice(bytes);
    // Accessors must not panic, whatever the input is.
    if let Ok(object) = &taken {
        let _ = (
            object.labels().count(),
            object.annotations().count(),
            object.owners().len(),
        );
        let _ = Transform::drop_fields(["spec", "metadata.labels"]).cut(object);
        let _ = Transform::keep_fields(["spec.name"]).cut(object);
    }
    let Some(value) = parsed(bytes).filter(has_usual_types) else {
        return Ok(());
    };
    let object = taken.map_err(|error| format!("{error}: {value}"))?;
    compare(&object, &value)
}

/// Checks that header and content of an object agree with the value, which has no `managedFields`.
pub(super) fn compare(object: &Object, value: &Value) -> Result<(), String> {
    let metadata = &value["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    same("name", object.name(), text("name"))?;
    same("namespace", object.namespace(), text("namespace"))?;
    same("uid", object.uid(), text("uid"))?;
    same(
        "resourceVersion",
        object.resource_version(),
        text("resourceVersion"),
    )?;
    same("generation", object.generation(), metadata["generation"].as_i64())?;
    same(
        "deletionTimestamp",
        object.is_deleting(),
        metadata["deletionTimestamp"].is_string(),
    )?;
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        same(key, object.label(key).as_deref(), value.as_str())?;
    }
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        same(key, object.annotation(key).as_deref(), value.as_str())?;
    }
    if !object.is_named(text("namespace"), text("name")) {
        return Err("it does not know its own name".to_owned());
    }
    let kept: Value = object.decode().map_err(|error| format!("{error:?}"))?;
    if !is_alike(&kept, value) {
        return Err(format!("{kept} is kept of {value}"));
    }
    Ok(())
}

/// Returns true if the values are equal except for the last digits of fractions.
fn is_alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b);
            a.len() == b.len() && pairs.into_iter().all(|(a, b)| a.0 == b.0 && is_alike(a.1, b.1))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_alike(a, b))
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or_default(), b.as_f64().unwrap_or_default());
            (a - b).abs() <= a.abs() * 1e-12
        }
        _ => a == b,
    }
}

fn same<T: PartialEq + std::fmt::Debug + Copy>(what: &str, ours: T, theirs: T) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}: {ours:?} is not {theirs:?}"))
    }
}

/// Writes JSON with white space, escapes and duplicate keys, as far as allowed.
fn write(value: &Value, odd: u64, out: &mut String) {
    let space = |out: &mut String, bit: u32| {
        if odd.rotate_right(bit) & 3 == 3 {
            out.push_str(" \n\t");
        }
    };
    match value {
        Value::Object(members) => {
            out.push('{');
            let mut first = true;
            for (key, value) in members {
                if !std::mem::take(&mut first) {
                    out.push(',');
                }
                let odd = odd.rotate_left(7).wrapping_mul(31) ^ key.len() as u64;
                space(out, 1);
                if odd & 31 == 7 {
                    // A duplicate with another value before it; the last wins.
                    out.push_str(&format!("{}:null,", json!(key)));
                }
                let plain = key.chars().all(|letter| letter.is_ascii_alphanumeric());
                if odd & 15 == 3 && plain && !key.is_empty() {
                    out.push_str(&format!(
                        "\"\\u{:04x}{}\"",
                        u32::from(key.as_bytes()[0]),
                        &key[1..]
                    ));
                } else {
                    out.push_str(&json!(key).to_string());
                }
                space(out, 3);
                out.push(':');
                space(out, 5);
                write(value, odd, out);
                space(out, 9);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                space(out, 11);
                write(item, odd.rotate_left(5), out);
                space(out, 13);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

pub(super) fn written(value: &Value, odd: u64) -> String {
    let mut out = String::new();
    write(value, odd, &mut out);
    out
}

/// Splits a list given in chunks. Returns the JSON of each item (empty if invalid), and whether the whole list was
/// accepted.
pub(super) fn split(text: &[u8], cuts: &[usize]) -> (Vec<String>, bool) {
    let mut found = Vec::new();
    let mut take = |item: Result<Arc<Object>, _>| match item {
        Ok(object) => found.push(String::from_utf8_lossy(object.bytes()).into_owned()),
        Err(_) => found.push(String::new()),
    };
    let mut splitter = ListSplitter::new(1 << 20);
    let mut is_fine = true;
    for chunk in chunks(text, cuts) {
        is_fine = is_fine && splitter.push(chunk, &mut take).is_ok();
    }
    is_fine = is_fine && splitter.finish(&mut take).is_ok();
    (found, is_fine)
}

pub(super) fn chunks<'a>(text: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}
