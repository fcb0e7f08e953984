// SPDX-License-Identifier: Apache-2.0
//! Conversion webhooks for tests: `v1` has `spec.size`, and `v2` has `spec.dimensions.size`.

use serde_json::{Value, json};

/// The answer to a `ConversionReview`; the path says what is wrong with it.
pub(crate) fn converted(path: &str, review: &Value) -> Value {
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let mut objects: Vec<Value> = objects.iter().map(|object| convert(object, wanted)).collect();
    let mut result = json!({"status": "Success"});
    for object in &mut objects {
        match path {
            "convert-name" => object["metadata"]["name"] = json!("other"),
            "convert-uid" => object["metadata"]["uid"] = json!("other"),
            "convert-kind" => object["kind"] = json!("Other"),
            "convert-version" => object["apiVersion"] = json!("conversions.example.com/v9"),
            "convert-metadata" => {
                object["metadata"]["labels"] = json!({"converted": "yes"});
                object["metadata"]["finalizers"] = json!(["example.com/ignored"]);
            }
            "convert-bare" => drop(object.as_object_mut().map(|object| object.remove("metadata"))),
            _ => {}
        }
    }
    match path {
        "convert-short" => objects.clear(),
        "convert-fail" => result = json!({"status": "Failure", "message": "cannot convert"}),
        "convert-silent" => result = json!({"status": "Failure"}),
        _ => {}
    }
    let uid = if path == "convert-id" {
        &json!("other")
    } else {
        &request["uid"]
    };
    let mut answer = json!({
        "kind": "ConversionReview", "apiVersion": review["apiVersion"],
        "response": {"uid": uid, "result": result, "convertedObjects": objects},
    });
    if path == "convert-nothing" {
        answer["response"] = Value::Null;
    }
    answer
}

fn convert(object: &Value, wanted: &str) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!(wanted);
    let size = object
        .pointer("/spec/size")
        .or(object.pointer("/spec/dimensions/size"))
        .cloned();
    let Some(size) = size else {
        return object;
    };
    let note = object.pointer("/spec/note").cloned();
    object["spec"] = if wanted.ends_with("/v2") {
        json!({"dimensions": {"size": size}})
    } else {
        json!({"size": size})
    };
    if let Some(note) = note {
        object["spec"]["note"] = note;
    }
    object
}
