// SPDX-License-Identifier: Apache-2.0
//! The type check of admission policies, compared with that of kube-controller-manager.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use steersman_testing::{Fixture, OwnServer, OwnServerOptions, eventually};

/// Creates a policy about Deployments with these expressions and returns its status once it is checked.
async fn checked(server: &OwnServer, name: &str, expressions: &[&str]) -> Value {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(server.client());
    let validations: Vec<Value> = expressions
        .iter()
        .map(|expression| json!({"expression": expression}))
        .collect();
    let rule = json!({"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]});
    let policy = json!({
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": validations},
    });
    let policy = serde_json::from_value(policy).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    status(server, name, 1).await
}

/// Returns the status of a policy once this generation is checked.
async fn status(server: &OwnServer, name: &str, generation: i64) -> Value {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(server.client());
    eventually("the policy is checked", async || {
        let policy = serde_json::to_value(policies.get(name).await.unwrap()).unwrap();
        let status = policy["status"].clone();
        (status["observedGeneration"] == generation).then_some(status)
    })
    .await
}

#[steersman_testing::test]
async fn warns_of_fields_that_a_kind_does_not_have(fixture: Fixture) {
    let server = fixture
        .own_server(OwnServerOptions::default().controllers())
        .await;
    let good = [
        "object.spec.replicas > 1",
        "object.spec.template.spec.containers.all(c, c.image.startsWith('x'))",
        "has(object.metadata.labels) && object.metadata.labels['a'] == 'b'",
    ];
    let status_of_good = checked(&server, "good", &good).await;
    assert_eq!(
        status_of_good,
        json!({"observedGeneration": 1, "typeChecking": {}})
    );

    let bad = [
        "object.spec.replicaz > 1",
        "object.spec.replicas > 1",
        "object.spec.template.spec.containers.all(c, c.imag == 'x')",
        "object.spec.replicas == 'x'",
    ];
    let status_of_bad = checked(&server, "bad", &bad).await;
    let warning = |index: usize, issue: &str| {
        let place = format!("spec.validations[{index}].expression");
        json!({"fieldRef": place, "warning": format!("apps/v1, Kind=Deployment: ERROR: <input>:{issue}\n")})
    };
    let warnings = [
        warning(
            0,
            "1:12: undefined field 'replicaz'\n | object.spec.replicaz > 1\n | ...........^",
        ),
        warning(
            2,
            "1:46: undefined field 'imag'\n | object.spec.template.spec.containers.all(c, c.imag == 'x')\n | .............................................^",
        ),
        warning(
            3,
            "1:22: found no matching overload for '_==_' applied to '(int, string)'\n | object.spec.replicas == 'x'\n | .....................^",
        ),
    ];
    assert_eq!(
        status_of_bad,
        json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": warnings}})
    );

    let policies: Api<ValidatingAdmissionPolicy> = Api::all(server.client());
    let patch = Patch::Merge(json!({"spec": {"validations": [{"expression": "true"}]}}));
    policies
        .patch("bad", &PatchParams::default(), &patch)
        .await
        .unwrap();
    // The apply that removes the warnings removes what held them.
    let mended = status(&server, "bad", 2).await;
    assert_eq!(mended, json!({"observedGeneration": 2}));
}
