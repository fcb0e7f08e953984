// SPDX-License-Identifier: Apache-2.0
//! Literal bodies of reviews.

use super::*;
use crate::test_kinds::{v1, v1alpha1};

fn conversions() -> Vec<AnyConversion> {
    vec![AnyConversion::new(
        Conversion::hub::<v1::Web>().spoke::<v1alpha1::Web>(),
    )]
}

fn body(desired: &str, objects: &Value) -> Value {
    json!({
        "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
        "request": {"uid": "705ab4f5", "desiredAPIVersion": desired, "objects": objects},
    })
}

fn answered(body: &Value) -> Result<Value, Failure> {
    review(&conversions(), body.to_string().as_bytes())
}

fn old(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1alpha1", "kind": "Web",
        "metadata": {"name": name, "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "future": 1},
        "spec": {"image": "nginx", "size": 3},
    })
}

fn new(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Web",
        "metadata": {"name": name, "namespace": "shop", "uid": "u", "labels": {"a": "b"}, "future": 1},
        "spec": {"image": "nginx", "replicas": 3},
    })
}

// R107
#[test]
fn guarantee_2_objects_are_converted_both_ways_and_keep_their_metadata() {
    for (desired, objects, converted) in [
        (
            "example.com/v1",
            json!([old("a"), new("b")]),
            json!([new("a"), new("b")]),
        ),
        (
            "example.com/v1alpha1",
            json!([old("a"), new("b")]),
            json!([old("a"), old("b")]),
        ),
    ] {
        let expected = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {"uid": "705ab4f5", "convertedObjects": converted, "result": {"status": "Success"}},
        });
        assert_eq!(answered(&body(desired, &objects)).unwrap(), expected);
    }
}

#[test]
fn guarantee_2_a_conversion_can_change_labels_and_annotations_only() {
    let mut converted = json!({"metadata": {"name": "x", "uid": "other", "annotations": {"lost": "1"}}});
    keep_metadata(&mut converted, &old("a"));
    let expected =
        json!({"name": "a", "namespace": "shop", "uid": "u", "future": 1, "annotations": {"lost": "1"}});
    assert_eq!(converted["metadata"], expected);
}

#[test]
fn guarantee_3_one_failure_fails_the_review() {
    let mut bad = old("bad");
    bad["spec"]["size"] = json!("three");
    let response = answered(&body("example.com/v1", &json!([old("a"), bad]))).unwrap();
    let response = &response["response"];
    assert_eq!(response["convertedObjects"], json!([]));
    assert_eq!(response["result"]["status"], "Failure");
    let message = response["result"]["message"].as_str().unwrap();
    let expected = "cannot convert Web shop/bad from example.com/v1alpha1 to example.com/v1: cannot decode it: spec.size";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn a_value_that_cannot_be_decoded_is_not_in_the_answer() {
    let mut bad = old("bad");
    bad["spec"]["size"] = json!("hunter2");
    let response = answered(&body("example.com/v1", &json!([bad]))).unwrap();
    let message = response["response"]["result"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("cannot decode it: spec.size: expected i32"),
        "{message}"
    );
    let error = answered(&body("example.com/v1", &json!("hunter2"))).unwrap_err();
    assert!(!error.message.contains("hunter2"), "{error:?}");
}

#[test]
fn unknown_kinds_and_versions_are_named() {
    let mut other = old("a");
    other["kind"] = json!("Other");
    for (desired, object, expected) in [
        ("example.com/v1", other, "this operator does not convert the kind"),
        (
            "example.com/v3",
            old("a"),
            "\"example.com/v3\" is unknown; known are example.com/v1, example.com/v1alpha1",
        ),
    ] {
        let response = answered(&body(desired, &json!([object]))).unwrap();
        let message = response["response"]["result"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_body_that_is_no_review_is_an_http_error() {
    let mut without_uid = body("example.com/v1", &json!([]));
    without_uid["request"]["uid"] = json!("");
    for body in [json!(1), json!({}), without_uid] {
        assert_eq!(answered(&body).unwrap_err().status, 400);
    }
}
