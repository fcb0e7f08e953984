// SPDX-License-Identifier: Apache-2.0
use super::*;

const LIST: &str = r#" {"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42","continue":"next"},"items":[{"metadata":{"name":"a"}} , {"metadata":{"name":"b","managedFields":[]},"spec":{"x":"]"}},{"metadata":{}}],"more":[{"metadata":{}}]}
"#;

fn split(chunks: impl Iterator<Item = Vec<u8>>) -> (Vec<String>, Result<ListMetadata, NoList>) {
    let mut names = Vec::new();
    let mut splitter = ListSplitter::new(1 << 20);
    for chunk in chunks {
        let pushed = splitter.push(&chunk, |item| {
            names.push(item.map_or_else(|error| error.to_string(), |object| object.name().to_owned()));
        });
        if let Err(error) = pushed {
            return (names, Err(error));
        }
    }
    let metadata = splitter.finish(|item| {
        names.push(item.map_or_else(|error| error.to_string(), |object| object.name().to_owned()))
    });
    (names, metadata)
}

#[test]
fn items_are_the_same_in_any_chunks() {
    for size in 1..=LIST.len() {
        let (names, metadata) = split(LIST.as_bytes().chunks(size).map(<[u8]>::to_vec));
        assert_eq!(names, ["a", "b", "the object has no metadata.name"], "{size}");
        let expected = ListMetadata {
            resource_version: "42".to_owned(),
            continue_token: "next".to_owned(),
        };
        assert_eq!(metadata, Ok(expected), "{size}");
    }
}

#[test]
fn an_empty_list_has_no_items() {
    for text in [
        r#"{"items":[],"metadata":{"resourceVersion":"101"}}"#,
        r#"{"metadata":{"resourceVersion":"101","continue":null},"items":null}"#,
    ] {
        let (names, metadata) = split(std::iter::once(text.as_bytes().to_vec()));
        assert!(names.is_empty());
        assert_eq!(metadata.unwrap().resource_version, "101");
    }
}

// D1
#[test]
fn an_answer_without_items_is_not_a_list() {
    for text in [
        "{}",
        r#"{"status":"ok"}"#,
        r#"{"metadata":{"resourceVersion":"101"}}"#,
    ] {
        let (_, metadata) = split(std::iter::once(text.as_bytes().to_vec()));
        assert_eq!(metadata, Err(NoList::NoItems), "{text}");
    }
    for items in ["{}", "7", r#""none""#] {
        let text = format!(r#"{{"metadata":{{"resourceVersion":"101"}},"items":{items}}}"#);
        let (_, metadata) = split(std::iter::once(text.into_bytes()));
        assert!(matches!(metadata, Err(NoList::Malformed { .. })), "{metadata:?}");
    }
}

// D1, D29
#[test]
fn rejects_a_list_of_another_resource_before_its_first_item() {
    let widgets = Resource::new("example.com", "v1", "Widget", "widgets");
    let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    let split = |resource: &Resource, text: &str| {
        let mut names = Vec::new();
        let mut splitter = ListSplitter::new(1 << 20).of(resource);
        let mut item = |item: Result<Arc<Object>, _>| names.push(item.unwrap().name().to_owned());
        let pushed = splitter.push(text.as_bytes(), &mut item);
        let all = pushed.and_then(|()| splitter.finish(&mut item));
        (names.len(), all.map(|metadata| metadata.resource_version))
    };
    let item = |kind: &str| format!(r#"{{"kind":"{kind}","metadata":{{"name":"a"}}}}"#);
    for (resource, text) in [
        (
            &maps,
            r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}"#,
        ),
        (&maps, r#"{"kind":"Status","apiVersion":"v1","items":[]}"#),
        (
            &maps,
            r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","items":null}"#,
        ),
        (&maps, r#"{"kind":7,"items":[]}"#),
        (&widgets, r#"{"kind":"Status","items":[]}"#),
        (&widgets, r#"{"items":[],"kind":"PodList","apiVersion":"v1"}"#),
        (
            &widgets,
            &format!(
                r#"{{"apiVersion":"example.com/v1","items":[{}]}}"#,
                item("Gadget")
            ),
        ),
    ] {
        let (taken, all) = split(resource, text);
        assert!(matches!(all, Err(NoList::OtherKind { .. })), "{text}: {all:?}");
        assert_eq!(taken, 0, "{text}");
    }
    for (resource, text) in [
        (
            &maps,
            r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#
                .to_owned(),
        ),
        (
            &maps,
            r#"{"kind":"List","metadata":{"resourceVersion":"7"},"items":null}"#.to_owned(),
        ),
        (
            &maps,
            r#"{"kind":null,"metadata":{"resourceVersion":"7"},"items":[]}"#.to_owned(),
        ),
        (
            &maps,
            format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#,
                item("PartialObjectMetadata")
            ),
        ),
        // A CRD can give its lists any kind.
        (
            &widgets,
            format!(
                r#"{{"apiVersion":"example.com/v1","items":[{}],"kind":"Widgetry","metadata":{{"resourceVersion":"7"}}}}"#,
                item("Widget")
            ),
        ),
    ] {
        assert_eq!(split(resource, &text).1.as_deref(), Ok("7"), "{text}");
    }
}

/// Returns the bytes that are kept of the single item of a list.
fn kept(list: &str) -> String {
    let mut kept = String::new();
    let mut splitter = ListSplitter::new(1 << 20);
    let item = |item: Result<Arc<Object>, _>| {
        kept = String::from_utf8(item.unwrap().bytes().to_vec()).unwrap();
    };
    splitter.push(list.as_bytes(), item).unwrap();
    kept
}

#[test]
fn items_get_the_type_of_the_list() {
    let list = |item: &str| {
        kept(&format!(
            r#"{{"kind":"PodList","apiVersion":"v1","items":[{item}]}}"#
        ))
    };
    let whole = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{}}"#;
    assert_eq!(list(r#"{"metadata":{"name":"a"},"spec":{}}"#), whole);
    assert_eq!(
        list(r#"  {"metadata":{"managedFields":[],"name":"a"},"spec":{}}"#),
        whole
    );
    assert_eq!(list(whole), whole);
    let other = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}"#;
    assert_eq!(
        list(r#"{"kind":"Node","metadata":{"name":"a"}}"#),
        r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#
    );
    assert_eq!(list(other), other);
    let null = r#"{"kind":null,"apiVersion":null,"metadata":{"name":"a"}}"#;
    assert_eq!(list(null), null);
    let escaped = r#"{"metad\u0061ta":{"name":"a"},"spec":{}}"#;
    assert_eq!(list(escaped), whole);
}

#[test]
fn items_of_an_untyped_list_stay_unchanged() {
    let item = r#"{"metadata":{"name":"a"}}"#;
    for head in [
        "",
        r#""kind":"List","#,
        r#""kind":"Pods","#,
        r#""kind":null,"apiVersion":null,"#,
    ] {
        assert_eq!(kept(&format!(r#"{{{head}"items":[{item}]}}"#)), item);
    }
}

#[test]
fn metadata_offsets_of_an_item_are_adjusted() {
    let mut splitter = ListSplitter::new(1 << 20);
    let list = r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a","managedFields":[{}],"uid":"u","labels":{"x":"y"}}}]}"#;
    let check = |item: Result<Arc<Object>, _>| {
        let object = item.unwrap();
        assert_eq!((object.name(), object.uid()), ("a", "u"));
        assert_eq!(object.label("x").as_deref(), Some("y"));
    };
    splitter.push(list.as_bytes(), check).unwrap();
}

#[test]
fn rejects_a_response_that_is_not_a_list() {
    let no_list = |text: &str| split(std::iter::once(text.as_bytes().to_vec())).1.unwrap_err();
    assert_eq!(
        no_list(r#"{"items":[{"metadata":{"name":"a"}}"#),
        NoList::Incomplete
    );
    assert_eq!(no_list("404 page not found"), NoList::Malformed { at: 0 });
    assert!(matches!(no_list(r#"{"items":[1]}"#), NoList::Malformed { .. }));
}
