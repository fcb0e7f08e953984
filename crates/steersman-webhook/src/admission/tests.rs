// SPDX-License-Identifier: Apache-2.0
//! Literal bodies of reviews.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::FutureExt;
use serde_json::{Value, json};

use super::*;
use crate::test_kinds::v1::Web;

/// The body that the API server sends for a creation.
fn creation(object: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "example.com", "version": "v1", "kind": "Web"},
            "resource": {"group": "example.com", "version": "v1", "resource": "webs"},
            "requestKind": {"group": "example.com", "version": "v1", "kind": "Web"},
            "requestResource": {"group": "example.com", "version": "v1", "resource": "webs"},
            "name": "front", "namespace": "shop", "operation": "CREATE",
            "userInfo": {"username": "admin", "uid": "014f", "groups": ["system:authenticated"], "extra": {"a": ["b"]}},
            "object": object, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

fn web(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Web", "metadata": {"name": "front", "namespace": "shop"}, "spec": spec})
}

fn answer(webhook: &AdmissionWebhook, body: &Value) -> Result<Value, Failure> {
    let answering = webhook.answer(body.to_string().as_bytes());
    answering.now_or_never().expect("nothing waits")
}

fn response(response: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

// R69
#[test]
fn guarantee_2_defaults_are_a_patch_of_what_changed() {
    let webhook = AdmissionWebhook::defaults::<Web>();
    assert_eq!(webhook.path, "/mutate-example-com-v1-web");
    let answered = answer(
        &webhook,
        &creation(&web(&json!({"image": "nginx", "unknown": true}))),
    );
    let patch = json!([{"op": "add", "path": "/spec/replicas", "value": 1}]);
    let expected = response(&json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": true,
        "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
    }));
    assert_eq!(answered.unwrap(), expected);

    let answered = answer(
        &webhook,
        &creation(&web(&json!({"image": "nginx", "replicas": 3}))),
    );
    let expected = json!({"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": true});
    assert_eq!(answered.unwrap(), response(&expected));
}

// R69
#[test]
fn rules_are_denials_with_causes_and_warnings() {
    let webhook = AdmissionWebhook::validates::<Web>();
    let answered = answer(
        &webhook,
        &creation(&web(&json!({"image": "old:latest", "replicas": 0}))),
    );
    let expected = response(&json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": false,
        "status": {
            "status": "Failure", "reason": "Invalid", "code": 422,
            "message": "Web.example.com \"front\" is invalid: spec.replicas: Invalid value: must be at least 1",
            "details": {"causes": [
                {"reason": "FieldValueInvalid", "message": "Invalid value: must be at least 1", "field": "spec.replicas"},
            ]},
        },
        "warnings": ["spec.image: `latest` is not stable"],
    }));
    assert_eq!(answered.unwrap(), expected);
}

#[test]
fn a_function_gets_the_request_and_adds_audit_annotations() {
    let webhook =
        AdmissionWebhook::validating("users.example.com", async |request: AdmissionRequest<Value>| {
            assert_eq!(request.operation, AdmissionOperation::Create);
            assert_eq!(request.old_object, None);
            let user = request.user_info.username.unwrap_or_default();
            Ok(AdmissionResponse::deny("no")
                .code(418)
                .reason("Teapot")
                .audit_annotation("user", user))
        });
    let webhook = webhook.rule(Rule::new("example.com", "*", "webs"));
    let expected = response(&json!({
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": false,
        "status": {"status": "Failure", "message": "no", "reason": "Teapot", "code": 418},
        "auditAnnotations": {"user": "admin"},
    }));
    assert_eq!(answer(&webhook, &creation(&web(&json!({})))).unwrap(), expected);
}

#[test]
fn guarantee_1_a_malformed_object_is_denied() {
    let webhook = AdmissionWebhook::validates::<Web>();
    let answered = answer(&webhook, &creation(&web(&json!({"image": 7})))).unwrap();
    assert_eq!(answered["response"]["status"]["code"], 400);
    let message = answered["response"]["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("`object`: spec.image: invalid type"),
        "{message}"
    );
}

#[test]
fn guarantee_1_an_error_of_user_code_is_an_http_error() {
    let webhook = AdmissionWebhook::validating("broken.example.com", async |_: AdmissionRequest<Value>| {
        Err::<AdmissionResponse, BoxError>("the database is down".into())
    });
    let webhook = webhook.rule(Rule::of::<Web>());
    let failure = answer(&webhook, &creation(&web(&json!({})))).unwrap_err();
    assert_eq!(failure, Failure::internal("the database is down"));
}

#[test]
fn guarantee_3_a_resource_without_a_rule_is_denied() {
    let webhook = AdmissionWebhook::validates::<Web>();
    let mut body = creation(&web(&json!({})));
    body["request"]["resource"] = json!({"group": "", "version": "v1", "resource": "pods"});
    let answered = answer(&webhook, &body).unwrap();
    assert_eq!(
        answered["response"]["status"]["message"],
        "webhook `validate.webs.example.com` serves webs.example.com/v1, not pods/v1; correct the rules of its configuration"
    );
}

#[test]
fn guarantee_1_a_body_that_is_no_review_is_an_http_error() {
    let webhook = AdmissionWebhook::validates::<Web>();
    let valid = creation(&web(&json!({})));
    let changed = |change: fn(&mut Value)| {
        let mut body = valid.clone();
        change(&mut body);
        body
    };
    for (body, expected) in [
        (json!("hello"), "the body is not an AdmissionReview"),
        (
            changed(|body| body["kind"] = json!("Pod")),
            "expected AdmissionReview",
        ),
        (
            changed(|body| body["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            "admissionReviewVersions: [v1]",
        ),
        (
            changed(|body| body["request"] = Value::Null),
            "cannot decode `request`",
        ),
        (
            changed(|body| body["request"]["uid"] = json!("")),
            "`request.uid` is empty",
        ),
        (
            changed(|body| body["request"]["operation"] = json!("EAT")),
            "cannot decode `request`",
        ),
    ] {
        let failure = answer(&webhook, &body).unwrap_err();
        assert_eq!(failure.status, 400);
        assert!(failure.message.contains(expected), "{failure:?}");
    }
}

#[test]
fn long_warnings_are_cut_at_a_character() {
    let response = AdmissionResponse::allow().warning("ü".repeat(200));
    assert_eq!(response.warnings, ["ü".repeat(128)]);
    let response = AdmissionResponse::allow().warning(format!("a{}", "ü".repeat(200)));
    assert_eq!(response.warnings[0].len(), 255);
}

#[test]
fn a_value_that_cannot_be_decoded_is_not_in_the_error() {
    let webhook = AdmissionWebhook::validates::<Web>();
    let mut body = creation(&web(&json!({})));
    body["request"]["dryRun"] = json!("hunter2");
    let error = answer(&webhook, &body).unwrap_err();
    assert!(error.message.contains("dryRun: expected "), "{error:?}");
    assert!(!error.message.contains("hunter2"), "{error:?}");
    body["kind"] = json!({"hunter2": 1});
    let error = answer(&webhook, &body).unwrap_err();
    assert!(!error.message.contains("hunter2"), "{error:?}");
}
