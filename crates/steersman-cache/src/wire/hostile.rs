// SPDX-License-Identifier: Apache-2.0
//! Bytes that no server should send: nothing panics, and accepted input means the same as to a full parser.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    lines::{Lines, WatchEvent},
    reference::{check, chunks, split, written},
};
use crate::{Object, Transform};

/// Generates any JSON, with a preference for relevant keys.
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

/// Generates the metadata of an object, mostly valid.
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

/// Paths that often exist.
const DROPPED: [&[&str]; 6] = [
    &["metadata", "labels"],
    &["metadata", "annotations", ""],
    &["spec", "name"],
    &["spec", "items", "kind"],
    &["items"],
    &["labels", "metadata", "spec"],
];

/// Removes a field from a parsed value.
fn remove(value: &mut Value, path: &[&str]) {
    match (value, path) {
        (Value::Array(items), _) => items.iter_mut().for_each(|item| remove(item, path)),
        (Value::Object(members), [name]) => _ = members.remove(*name),
        (Value::Object(members), [name, below @ ..]) => {
            members
                .get_mut(*name)
                .into_iter()
                .for_each(|value| remove(value, below));
        }
        _ => {}
    }
}

fn holds(checked: Result<(), String>) -> Result<(), TestCaseError> {
    checked.map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // R150 R167
    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        holds(check(&bytes))?;
        let _ = WatchEvent::parse(&bytes);
        split(&bytes, &[]);
    }

    // R150 R167
    #[test]
    fn arbitrary_json_tokens_cause_no_panic(text in r#"[\[\]{}":,\\a1n ]{0,40}"#) {
        holds(check(text.as_bytes()))?;
        let _ = WatchEvent::parse(text.as_bytes());
        split(text.as_bytes(), &[]);
    }

    #[test]
    fn an_object_parses_as_by_serde(object in object(), odd in any::<u64>()) {
        holds(check(object.to_string().as_bytes()))?;
        holds(check(written(&object, odd).as_bytes()))?;
    }

    #[test]
    fn a_transform_agrees_with_serde(object in object(), odd in any::<u64>()) {
        for text in [object.to_string(), written(&object, odd)] {
            let Ok(object) = Object::from_slice(text.as_bytes()) else { continue };
            let Ok(mut expected) = object.decode::<Value>() else { continue };
            DROPPED.iter().for_each(|path| remove(&mut expected, path));
            let paths: Vec<String> = DROPPED.iter().map(|path| path.join(".")).collect();
            let left = Transform::drop_fields(paths.iter().map(String::as_str)).apply(object);
            let left: Value = left.decode().unwrap();
            prop_assert_eq!(left, expected);
        }
    }

    // R150
    #[test]
    fn a_damaged_object_causes_no_panic(
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
        holds(check(&bytes))?;
        let cut = &bytes[..end.index(bytes.len())];
        holds(check(cut))?;
        let line = [br#"{"type":"MODIFIED","object":"#, cut, b"}"].concat();
        let _ = WatchEvent::parse(&line);
    }

    #[test]
    fn a_list_parses_the_same_in_any_chunks(
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
    fn lines_are_the_same_in_any_chunks(
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
fn removes_white_space_after_managed_fields() {
    let json = br#"{"metadata":{"managedFields":[] ,"name":"a"}}"#;
    let object = Object::from_slice(json).unwrap();
    assert_eq!(object.bytes(), br#"{"metadata":{"name":"a"}}"#);
}

#[test]
fn a_later_null_replaces_a_value() {
    let json = br#"{"metadata":{"name":"a","namespace":"b","namespace":null}}"#;
    assert_eq!(Object::from_slice(json).unwrap().namespace(), "");
    let json = br#"{"metadata":{"name":"a","labels":{"x":"y"},"labels":null}}"#;
    assert_eq!(Object::from_slice(json).unwrap().labels().count(), 0);
}

#[test]
fn the_last_of_duplicate_labels_counts() {
    let json = br#"{"metadata":{"name":"a","labels":{"x":"y","x":"z"}}}"#;
    assert_eq!(Object::from_slice(json).unwrap().label("x").as_deref(), Some("z"));
}

#[test]
fn a_key_that_needs_escapes_is_kept() {
    let json = br#"{"metadata":{"name":"a","x\"y":1},"\n":[]}"#;
    let object = Object::from_slice(json).unwrap();
    assert_eq!(object.bytes(), json);
}

/// Returns the rest of an object with this `spec` after the transform.
fn left(transform: &Transform, spec: &str) -> String {
    let json = format!(r#"{{"metadata":{{"name":"a"}},"spec":{spec}}}"#);
    let object = Object::from_slice(json.as_bytes()).unwrap();
    let left = transform.apply(object);
    let text = std::str::from_utf8(left.bytes()).unwrap();
    let rest = text.strip_prefix(r#"{"metadata":{"name":"a"}"#).unwrap();
    let rest = rest.strip_prefix(r#","spec":"#).unwrap_or(rest);
    rest.strip_suffix('}').unwrap().to_owned()
}

const DEEP: usize = 1_000_000;

/// Returns deeply nested lists with this in the middle.
fn lists(middle: &str) -> String {
    "[".repeat(DEEP) + middle + &"]".repeat(DEEP)
}

// R167
#[test]
fn guarantee_4_transforms_deeply_nested_lists() {
    let drop = Transform::drop_fields(["spec.a"]);
    let keep = Transform::keep_fields(["spec.a"]);
    for (a, b) in [(r#""a":1"#, r#""b":2"#), (r#""\u0061":1"#, r#""\n":2"#)] {
        let deep = lists(&format!("{{{a},{b}}} , []"));
        assert!(left(&drop, &deep) == lists(&format!("{{{b}}},[]")));
        assert!(left(&keep, &deep) == lists(&format!("{{{a}}},[]")));
    }
    assert_eq!(left(&Transform::drop_fields(["spec"]), &lists("")), "");
    assert_eq!(left(&Transform::keep_fields([]), &lists("")), "");
    let many = format!("[{},{}]", lists("1"), lists("2"));
    assert!(left(&drop, &many) == many);
}

#[test]
fn guarantee_5_keeps_invalid_json() {
    let drop = Transform::drop_fields(["spec.a"]);
    // Braces that close brackets are not checked when an object is created.
    let json = format!(
        r#"{{"metadata":{{"name":"a"}},"spec":{}{}}}"#,
        "[".repeat(DEEP),
        "}".repeat(DEEP)
    );
    let odd = Object::from_slice(json.as_bytes()).unwrap();
    assert!(drop.apply(odd).bytes() == json.as_bytes());
}

// R167
#[test]
fn guarantee_4_transforms_deeply_nested_objects() {
    let deep = r#"{"a":"#.repeat(DEEP) + "1" + &"}".repeat(DEEP);
    for path in ["spec.b", "spec.a.a.b"] {
        assert!(left(&Transform::drop_fields([path]), &deep) == deep);
    }
    assert_eq!(left(&Transform::drop_fields(["spec.a.a"]), &deep), r#"{"a":{}}"#);
    assert!(left(&Transform::keep_fields(["spec.a.a"]), &deep) == deep);
    assert_eq!(left(&Transform::keep_fields(["spec.b.b"]), &deep), "{}");
}

// R167
#[test]
fn a_deeply_nested_object_is_a_decode_error() {
    let json = format!(r#"{{"metadata":{{"name":"a"}},"spec":{}}}"#, lists(""));
    let object = Object::from_slice(json.as_bytes()).unwrap();
    assert!(object.decode::<Value>().is_err());
    let only = Transform::new().only(|object| object.decode::<Value>().is_ok());
    assert!(!only.admits(&object));
}
