// SPDX-License-Identifier: Apache-2.0
//! What keeps an object that is being deleted, and when it goes.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use harness::{Raw, builder};
use serde_json::{Value, json};
use steersman_apiserver::{ApiServer, Workloads};

async fn create(server: &ApiServer, path: &str, body: &Value) -> Value {
    Raw::new("POST", path).json(body).send(server).await.ok()
}

async fn namespace(server: &ApiServer, metadata: Value) -> String {
    let created = create(server, "/api/v1/namespaces", &json!({"metadata": metadata})).await;
    format!(
        "/api/v1/namespaces/{}",
        created["metadata"]["name"].as_str().unwrap()
    )
}

async fn merge(server: &ApiServer, path: &str, patch: &Value) -> Value {
    Raw::new("PATCH", path)
        .header("content-type", "application/merge-patch+json")
        .json(patch)
        .send(server)
        .await
        .ok()
}

async fn is_there(server: &ApiServer, path: &str) -> bool {
    Raw::get(path).send(server).await.code == 200
}

#[tokio::test]
async fn guarantee_4_a_namespace_is_kept_until_it_is_empty() {
    for policy in ["Foreground", "Orphan"] {
        let server = builder().build();
        let path = namespace(&server, json!({"name": "kept"})).await;
        let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
        create(&server, &format!("{path}/configmaps"), &held).await;
        let delete = Raw::new("DELETE", &path).json(&json!({"propagationPolicy": policy}));
        delete.send(&server).await.ok();
        let kept = Raw::get(&path).send(&server).await.ok();
        assert_eq!(kept["status"]["phase"], "Terminating", "{policy}");
        assert_eq!(kept["metadata"].get("finalizers"), None, "{policy}");
        let held = format!("{path}/configmaps/held");
        merge(&server, &held, &json!({"metadata": {"finalizers": null}})).await;
        assert!(!is_there(&server, &path).await, "{policy}");
    }
}

#[tokio::test]
async fn guarantee_4_a_pod_keeps_its_grace_period() {
    let server = builder().build();
    let pods = "/api/v1/namespaces/default/pods";
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    create(&server, pods, &json!({"metadata": {"name": "p"}, "spec": spec})).await;
    let path = format!("{pods}/p");
    let delete = Raw::new("DELETE", &path).json(&json!({"propagationPolicy": "Foreground"}));
    delete.send(&server).await.ok();
    let pod = Raw::get(&path).send(&server).await.ok();
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(pod["metadata"].get("finalizers"), None);
    let now = Raw::new("DELETE", &path).json(&json!({"gracePeriodSeconds": 0}));
    now.send(&server).await.ok();
    assert!(!is_there(&server, &path).await);
}

#[tokio::test]
async fn an_empty_namespace_that_is_kept_is_written_only_by_others() {
    let server = builder().build();
    let path = namespace(
        &server,
        json!({"name": "kept", "finalizers": ["example.com/hold"]}),
    )
    .await;
    Raw::new("DELETE", &path).send(&server).await.ok();
    let before = server.revision();
    merge(&server, &path, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(server.revision(), before + 1);
}

#[tokio::test]
async fn a_claim_is_deleted_once_no_pod_uses_it() {
    let server = builder().build();
    let path = namespace(&server, json!({"name": "claims"})).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    for name in ["unused", "used"] {
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        create(&server, &format!("{path}/persistentvolumeclaims"), &claim).await;
    }
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "used"}});
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "volumes": [volume]});
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    create(&server, &format!("{path}/pods"), &pod).await;
    let claim = |name: &str| format!("{path}/persistentvolumeclaims/{name}");
    for name in ["unused", "used"] {
        Raw::new("DELETE", &claim(name)).send(&server).await.ok();
    }
    assert!(!is_there(&server, &claim("unused")).await);
    assert!(is_there(&server, &claim("used")).await);
    Raw::new("DELETE", &path).send(&server).await.ok();
    let now = Raw::new("DELETE", &format!("{path}/pods/p")).json(&json!({"gracePeriodSeconds": 0}));
    now.send(&server).await.ok();
    assert!(!is_there(&server, &claim("used")).await);
    assert!(!is_there(&server, &path).await, "nothing keeps the namespace");
}

#[tokio::test]
async fn a_namespace_of_a_set_with_claims_ends() {
    let server = builder().workloads(Workloads::default()).build();
    let path = namespace(&server, json!({"name": "sets"})).await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({
        "replicas": 2, "serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template,
        "volumeClaimTemplates": [claim],
    });
    let sets = "/apis/apps/v1/namespaces/sets/statefulsets";
    create(&server, sets, &json!({"metadata": {"name": "s"}, "spec": spec})).await;
    let claim = format!("{path}/persistentvolumeclaims/data-s-1");
    assert!(is_there(&server, &claim).await);
    Raw::new("DELETE", &path).send(&server).await.ok();
    assert!(!is_there(&server, &claim).await);
    assert!(!is_there(&server, &path).await);
}

#[tokio::test]
async fn a_volume_is_deleted_unless_it_is_bound() {
    let server = builder().build();
    let volumes = "/api/v1/persistentvolumes";
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
    for name in ["free", "bound"] {
        create(
            &server,
            volumes,
            &json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
    }
    let bound = format!("{volumes}/bound");
    let status = format!("{bound}/status");
    merge(&server, &status, &json!({"status": {"phase": "Bound"}})).await;
    for name in ["free", "bound"] {
        let delete = Raw::new("DELETE", &format!("{volumes}/{name}"));
        delete.send(&server).await.ok();
    }
    assert!(!is_there(&server, &format!("{volumes}/free")).await);
    assert!(is_there(&server, &bound).await);
    merge(&server, &status, &json!({"status": {"phase": "Released"}})).await;
    assert!(!is_there(&server, &bound).await);
}
