// SPDX-License-Identifier: Apache-2.0
//! Errors of rejected objects.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use kube::{
    core::{DynamicObject, GroupVersionKind},
    discovery::ApiResource,
};
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_cluster::Error;
use steersman_testing::Fixture;
use support::{cluster, object};

async fn install(fixture: &Fixture) {
    let text = |more: Value| {
        let mut field = json!({"type": "string"});
        field
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        field
    };
    let spec = json!({"type": "object", "properties": {
        "key": text(json!({"pattern": "^[a-z]+$"})),
        "mode": text(json!({"enum": ["on", "off"]})),
        "until": text(json!({"format": "date"})),
        "short": text(json!({"maxLength": 3})),
        "size": {"type": "integer", "maximum": 5},
        "list": {"type": "array", "items": text(json!({})), "x-kubernetes-list-type": "set"},
    }});
    let definition = object(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("locks.{}", fixture.group())},
        "spec": {
            "group": fixture.group(), "scope": "Namespaced",
            "names": {"kind": "Lock", "plural": "locks", "singular": "lock", "listKind": "LockList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    }));
    fixture.install(&definition).await;
}

async fn refused(fixture: &Fixture, spec: Value) -> Error {
    let proxy = fixture.proxy().await;
    let cluster = cluster(fixture, &proxy).await;
    let gvk = GroupVersionKind::gvk(fixture.group(), "v1", "Lock");
    let mut lock = DynamicObject::new("a", &ApiResource::from_gvk_with_plural(&gvk, "locks"));
    lock.metadata.namespace = Some(fixture.namespace().to_owned());
    lock.data = json!({"spec": spec});
    let locks = Resource::new(fixture.group(), "v1", "Lock", "locks");
    cluster.client().of(&locks).create(&lock).await.unwrap_err()
}

#[steersman_testing::test]
async fn guarantee_6_a_rejection_shows_field_and_reason_but_no_value(fixture: Fixture) {
    install(&fixture).await;
    for (spec, field, reason) in [
        (json!({"key": "hunter2"}), "spec.key", "should match '^[a-z]+$'"),
        (
            json!({"mode": "hunter2"}),
            "spec.mode",
            r#"supported values: "on", "off""#,
        ),
        (json!({"until": "hunter2"}), "spec.until", "must be of type date"),
        (
            json!({"size": 47_114_711}),
            "spec.size",
            "should be less than or equal to 5",
        ),
        (json!({"size": "hunter2"}), "spec.size", "must be of type integer"),
        (
            json!({"key": {"a": "hunter2"}}),
            "spec.key",
            "must be of type string",
        ),
        (
            json!({"list": ["hunter2", "hunter2"]}),
            "spec.list[1]",
            "Duplicate value",
        ),
        (
            json!({"key": "hunter2", "mode": "hunter2\": x, \"4711", "list": ["hunter2", "hunter2"]}),
            "spec.mode",
            "supported values",
        ),
    ] {
        let error = refused(&fixture, spec.clone()).await;
        assert!(error.is_invalid(), "{error:?}");
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains("hunter2") && !shown.contains("4711"), "{shown}");
            assert!(shown.contains(field), "{field} in {shown}");
            assert!(shown.replace('\\', "").contains(reason), "{reason} in {shown}");
        }
        assert!(!error.status().unwrap().message.is_empty());
    }
    let error = refused(&fixture, json!({"key": "hunter2"})).await;
    let status = error.status().unwrap();
    assert!(
        status.message.contains("hunter2"),
        "whoever asks for it gets it: {status:?}"
    );
}
