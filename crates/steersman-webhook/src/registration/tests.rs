// SPDX-License-Identifier: Apache-2.0
//! Literal registration objects.

use super::*;
use crate::{
    conversion::Conversion,
    test_kinds::{v1, v1alpha1},
};

fn declarations(mode: Registration) -> Declarations {
    let conversion = Conversion::hub::<v1::Web>().spoke::<v1alpha1::Web>();
    Declarations {
        name: "web".to_owned(),
        namespace: "web-system".to_owned(),
        target: Target::Service {
            name: "web-webhooks".to_owned(),
            port: 443,
        },
        mode,
        admission: vec![AdmissionWebhook::defaults::<v1::Web>()],
        conversions: [AnyConversion::new(conversion)].into(),
    }
}

#[test]
fn a_webhook_excludes_the_namespace_of_the_operator() {
    let desired = declarations(Registration::Apply).desired(&Object::Mutating, None, Some("PEM"));
    let expected = json!({"webhooks": [{
        "name": "default.webs.example.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"namespace": "web-system", "name": "web-webhooks", "port": 443, "path": "/mutate-example-com-v1-web"},
            "caBundle": "UEVN",
        },
        "rules": [{
            "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["webs"],
            "operations": ["CREATE", "UPDATE"],
        }],
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
        "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["web-system"]},
        ]},
        "objectSelector": {}, "matchConditions": [],
    }]});
    assert_eq!(desired.unwrap(), expected);
}

#[test]
fn a_crd_gets_its_conversion_only_if_it_is_installed() {
    let declarations = declarations(Registration::Apply);
    let crd = Object::Crd("webs.example.com".to_owned());
    assert_eq!(declarations.desired(&crd, None, Some("PEM")), None);
    let desired = declarations.desired(&crd, Some(&json!({})), Some("PEM")).unwrap();
    let service = json!({"namespace": "web-system", "name": "web-webhooks", "port": 443, "path": "/convert"});
    let config = json!({"service": service, "caBundle": "UEVN"});
    let webhook = json!({"clientConfig": config, "conversionReviewVersions": ["v1"]});
    let expected = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
    assert_eq!(desired, expected);
}

#[test]
fn the_mode_for_manifests_writes_only_the_bundle() {
    let declarations = declarations(Registration::CaBundle);
    assert_eq!(declarations.desired(&Object::Mutating, None, Some("PEM")), None);
    let live = json!({"webhooks": [{"name": "default.webs.example.com"}, {"name": "other"}]});
    let desired = declarations
        .desired(&Object::Mutating, Some(&live), Some("PEM"))
        .unwrap();
    let expected =
        json!({"webhooks": [{"name": "default.webs.example.com", "clientConfig": {"caBundle": "UEVN"}}]});
    assert_eq!(desired, expected);
}

#[test]
fn the_mode_for_manifests_skips_a_crd_without_a_conversion_webhook() {
    let declarations = declarations(Registration::CaBundle);
    let crd = Object::Crd("webs.example.com".to_owned());
    let desired = |live: &Value| declarations.desired(&crd, Some(live), Some("PEM"));
    assert_eq!(desired(&json!({"spec": {}})), None);
    assert_eq!(
        desired(&json!({"spec": {"conversion": {"strategy": "None"}}})),
        None
    );
    let expected = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": "UEVN"}}}}});
    let live = json!({"spec": {"conversion": {"strategy": "Webhook"}}});
    assert_eq!(desired(&live), Some(expected));
}

#[test]
fn an_object_that_has_all_declared_fields_is_not_written() {
    let desired = json!({"webhooks": [{"name": "a", "rules": [{"x": 1}], "matchConditions": []}]});
    let live =
        json!({"webhooks": [{"name": "other"}, {"name": "a", "rules": [{"x": 1, "scope": "*"}], "more": 1}]});
    assert!(contains(&live, &desired));
    let changed = json!({"webhooks": [{"name": "a", "rules": [{"x": 2}]}]});
    assert!(!contains(&changed, &desired));
    assert!(!contains(&json!({"webhooks": []}), &desired));
    let removed = json!({"webhooks": []});
    assert!(!contains(&live, &removed));
}

#[test]
fn the_certificate_names_the_service_or_the_host() {
    let mut declarations = declarations(Registration::Apply);
    let names = [
        "web-webhooks.web-system.svc",
        "web-webhooks.web-system.svc.cluster.local",
        "web-webhooks.web-system",
    ];
    assert_eq!(declarations.names(), names);
    for (url, host) in [
        ("https://127.0.0.1:9443", "127.0.0.1"),
        ("https://[::1]:1/x", "::1"),
        ("https://a.b", "a.b"),
    ] {
        declarations.target = Target::Url(url.to_owned());
        assert_eq!(declarations.names(), [host]);
    }
}

#[test]
fn a_webhook_for_pods_that_fails_is_found() {
    use crate::{AdmissionRequest, AdmissionResponse};
    let webhook = |rule: Rule| {
        let webhook = AdmissionWebhook::validating("a.b.c", async |_: AdmissionRequest<Value>| {
            Ok(AdmissionResponse::allow())
        });
        webhook.rule(rule)
    };
    assert!(can_block_pods(&webhook(Rule::new("", "v1", "pods"))));
    assert!(can_block_pods(&webhook(Rule::new("*", "*", "*"))));
    assert!(!can_block_pods(&webhook(Rule::new("example.com", "v1", "pods"))));
    let ignored = webhook(Rule::new("", "v1", "pods")).failure_policy(FailurePolicy::Ignore);
    assert!(!can_block_pods(&ignored));
}
