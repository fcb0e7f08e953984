// SPDX-License-Identifier: Apache-2.0
//! Bytes that no server should send: nothing panics, and what is taken means what a full parser says.
//!
//! Where the two may differ: JSON that serde_json refuses but nobody has to look into (numbers that are none, invalid
//! UTF-8 or control characters in a field of the content, nesting deeper than 128), which is taken as it is and refused
//! when it is decoded; an empty name, which is none; a header field that needs escapes,
//! which is refused; and the last digit of a fraction in an object that had to be parsed and written again.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    lines::{Event, Lines},
    list::ListSplitter,
};
use crate::{Object, Transform};

/// Any JSON, with the keys that matter more often than others.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(|number| json!(f64::from(number) / 8.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9-]{0,8}",
        Just("\"}]{[\\".to_owned()),
        Just("ü\u{1F600}\n\t\u{7f}".to_owned()),
        any::<String>(),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "metadata",
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "labels",
            "annotations",
            "ownerReferences",
            "managedFields",
            "deletionTimestamp",
            "spec",
            "items",
            "kind",
        ])
        .prop_map(str::to_owned),
        text(),
    ]
}

/// The metadata of an object, mostly as it should be.
fn metadata() -> impl Strategy<Value = Map<String, Value>> {
    let labels = || prop::collection::btree_map(text(), text(), 0..3).prop_map(|labels| json!(labels));
    let usual = (
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(0_i64..9),
        prop::option::of(labels()),
        prop::option::of(labels()),
        prop::option::of(value()),
        prop::option::of(Just("2026-01-01T00:00:00Z")),
    );
    let unusual = prop::collection::vec((key(), value()), 0..2);
    (text(), usual, unusual).prop_map(|(name, usual, unusual)| {
        let (namespace, revision, generation, labels, annotations, managed, deletion) = usual;
        let members = [
            ("name", Some(json!(name))),
            ("namespace", namespace.map(Value::from)),
            ("resourceVersion", revision.map(Value::from)),
            ("generation", generation.map(Value::from)),
            ("labels", labels),
            ("annotations", annotations),
            ("managedFields", managed),
            ("deletionTimestamp", deletion.map(Value::from)),
        ];
        let usual = members
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        usual.chain(unusual).collect()
    })
}

fn object() -> impl Strategy<Value = Value> {
    (metadata(), prop::collection::vec((key(), value()), 0..4)).prop_map(|(metadata, rest)| {
        let mut object: Map<String, Value> = rest.into_iter().collect();
        object.insert("metadata".to_owned(), Value::Object(metadata));
        Value::Object(object)
    })
}

/// Writes JSON with white space, escapes and doubled keys where they are allowed.
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
                    // Somebody wrote it before, as something else; the last counts.
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

fn written(value: &Value, odd: u64) -> String {
    let mut out = String::new();
    write(value, odd, &mut out);
    out
}

/// What a full parser makes of the bytes, without `managedFields`; nothing if they are no object with a name.
fn parsed(bytes: &[u8]) -> Option<Value> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("managedFields");
    let name = metadata.get("name")?.as_str()?;
    (!name.is_empty()).then_some(value)
}

/// Whether the fields of the header have the types that they have in Kubernetes.
fn has_usual_types(value: &Value) -> bool {
    let metadata = &value["metadata"];
    let texts = ["namespace", "uid", "resourceVersion"].map(|key| &metadata[key]);
    let maps = ["labels", "annotations"].map(|key| &metadata[key]);
    let top = ["kind", "apiVersion"].map(|key| &value[key]);
    let needs_escapes = |text: &str| json!(text).to_string().len() != text.len() + 2;
    let is_text = |value: &Value| value.is_null() || value.as_str().is_some_and(|text| !needs_escapes(text));
    is_text(&metadata["name"])
        && texts.into_iter().chain(top).all(is_text)
        && maps.into_iter().all(|value| value.is_null() || value.is_object())
        && (metadata["ownerReferences"].is_null() || metadata["ownerReferences"].is_array())
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let taken = Object::from_slice(bytes);
    // Whatever it is, those who take it further do not panic either.
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
    let object = taken.map_err(|error| TestCaseError::fail(format!("{error}: {value}")))?;
    let metadata = &value["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    prop_assert_eq!(object.name(), text("name"));
    prop_assert_eq!(object.namespace(), text("namespace"));
    prop_assert_eq!(object.uid(), text("uid"));
    prop_assert_eq!(object.resource_version(), text("resourceVersion"));
    prop_assert_eq!(object.generation(), metadata["generation"].as_i64());
    prop_assert_eq!(object.is_deleting(), metadata["deletionTimestamp"].is_string());
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        let found = object.label(key);
        prop_assert_eq!(found.as_deref(), value.as_str());
    }
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        let found = object.annotation(key);
        prop_assert_eq!(found.as_deref(), value.as_str());
    }
    let kept: Value = object
        .decode()
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(kept, value, "what is kept is all but managedFields");
    Ok(())
}

/// The objects of a list or their errors, as texts.
fn split(text: &[u8], cuts: &[usize]) -> (Vec<String>, bool) {
    let mut found = Vec::new();
    let mut take = |item: Result<Object, _>| match item {
        Ok(object) => found.push(String::from_utf8_lossy(object.bytes()).into_owned()),
        Err(_) => found.push(String::new()),
    };
    let mut splitter = ListSplitter::new(1 << 20, crate::Revision::new(""));
    let mut is_fine = true;
    for chunk in chunks(text, cuts) {
        is_fine = is_fine && splitter.push(chunk, &mut take).is_ok();
    }
    is_fine = is_fine && splitter.finish(&mut take).is_ok();
    (found, is_fine)
}

fn chunks<'a>(text: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // R150 R167
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        check(&bytes)?;
        let _ = Event::parse(&bytes);
        split(&bytes, &[]);
    }

    // R150 R167
    #[test]
    fn arbitrary_json_marks_do_no_harm(text in r#"[\[\]{}":,\\a1n ]{0,40}"#) {
        check(text.as_bytes())?;
        let _ = Event::parse(text.as_bytes());
        split(text.as_bytes(), &[]);
    }

    #[test]
    fn an_object_means_what_a_full_parser_says(object in object(), odd in any::<u64>()) {
        check(object.to_string().as_bytes())?;
        check(written(&object, odd).as_bytes())?;
    }

    // R150
    #[test]
    fn an_object_that_was_damaged_does_no_harm(
        object in object(),
        odd in any::<u64>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written(&object, odd).into_bytes();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        check(&bytes)?;
        let cut = &bytes[..end.index(bytes.len())];
        check(cut)?;
        let line = [br#"{"type":"MODIFIED","object":"#, cut, b"}"].concat();
        let _ = Event::parse(&line);
    }

    #[test]
    fn a_list_gives_the_same_objects_however_it_is_cut(
        objects in prop::collection::vec(object(), 0..5),
        odd in any::<u64>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let items: Vec<String> = objects.iter().map(|object| written(object, odd)).collect();
        let list = format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#,
            items.join(" , ")
        );
        let mut bytes = list.into_bytes();
        if damage.is_none() {
            let (found, is_fine) = split(&bytes, &cuts);
            prop_assert!(is_fine);
            prop_assert_eq!(found.len(), objects.len());
        }
        if let Some((place, byte)) = damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let (whole, whole_is_fine) = split(&bytes, &[]);
        let (cut, cut_is_fine) = split(&bytes, &cuts);
        prop_assert_eq!(whole_is_fine, cut_is_fine);
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn lines_are_the_same_however_the_stream_is_cut(
        text in "[ab\n]{0,60}",
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let mut lines = Lines::new(1 << 20);
        let mut found = Vec::new();
        for chunk in chunks(text.as_bytes(), &cuts) {
            lines.push(chunk, |line| found.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        }
        let mut expected: Vec<_> = text.split('\n').map(str::to_owned).collect();
        let rest = expected.pop().unwrap_or_default();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(lines.rest(), rest.as_bytes());
    }
}

#[test]
fn white_space_before_the_comma_behind_managed_fields_is_cut_with_it() {
    let json = br#"{"metadata":{"managedFields":[] ,"name":"a"}}"#;
    let object = Object::from_slice(json).unwrap();
    assert_eq!(object.bytes(), br#"{"metadata":{"name":"a"}}"#);
}

#[test]
fn a_null_after_something_takes_it_back() {
    let json = br#"{"metadata":{"name":"a","namespace":"b","namespace":null}}"#;
    assert_eq!(Object::from_slice(json).unwrap().namespace(), "");
    let json = br#"{"metadata":{"name":"a","labels":{"x":"y"},"labels":null}}"#;
    assert_eq!(Object::from_slice(json).unwrap().labels().count(), 0);
}

#[test]
fn of_a_label_that_is_there_twice_the_last_counts() {
    let json = br#"{"metadata":{"name":"a","labels":{"x":"y","x":"z"}}}"#;
    assert_eq!(Object::from_slice(json).unwrap().label("x").as_deref(), Some("z"));
}

#[test]
fn a_key_that_needs_escapes_is_kept() {
    let json = br#"{"metadata":{"name":"a","x\"y":1},"\n":[]}"#;
    let object = Object::from_slice(json).unwrap();
    assert_eq!(object.bytes(), json);
}

#[test]
fn deep_nesting_needs_no_stack() {
    let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
    let json = format!(r#"{{"metadata":{{"name":"a"}},"spec":{deep}}}"#);
    let object = Object::from_slice(json.as_bytes()).unwrap();
    assert!(object.decode::<Value>().is_err());
    assert!(Transform::drop_fields(["spec"]).apply(object).bytes().len() < 100);
}
