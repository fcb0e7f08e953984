// SPDX-License-Identifier: Apache-2.0
//! Pods as a Deployment's controller and a kubelet leave them: about 5.4 KB of JSON, 1.5 KB of it managedFields.

use serde_json::{Value, json};

use super::chance::Chance;

const APPS: [&str; 8] = [
    "billing", "catalog", "checkout", "frontend", "identity", "ledger", "search", "shipping",
];

/// Namespace and name of Pod number `index`.
#[must_use]
pub fn pod_key(index: usize) -> (String, String) {
    let chance = &mut Chance::new(index);
    let app = chance.one_of(&APPS);
    let (template, own) = (chance.hex(9), chance.hex(5));
    (
        format!("team-{:02}", index % 50),
        format!("{app}-{template}-{own}{index:05}"),
    )
}

/// Pod number `index`. It has no revision, which is the store's to give.
#[must_use]
pub fn pod(index: usize) -> Value {
    let chance = &mut Chance::new(index);
    let app = chance.one_of(&APPS);
    let template = chance.hex(9);
    let (namespace, name) = pod_key(index);
    let (created, owner) = (chance.time(), chance.uid());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": format!("{app}-{template}-"),
            "namespace": namespace,
            "uid": chance.uid(),
            "generation": 1,
            "creationTimestamp": created,
            "labels": {
                "app.kubernetes.io/name": app,
                "app.kubernetes.io/part-of": "shop",
                "app.kubernetes.io/version": format!("v1.{}.{}", chance.below(40), chance.below(20)),
                "pod-template-hash": template,
                "tier": chance.one_of(&["back", "front", "batch"]),
            },
            "annotations": {
                "checksum/config": chance.hex(64),
                "prometheus.io/scrape": "true",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{template}"),
                "uid": owner, "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": managed_fields(&owner, &created),
        },
        "spec": spec(chance, app),
        "status": status(chance, app, &created),
    })
}

fn managed_fields(owner: &str, time: &str) -> Value {
    let container = |env: &[&str]| {
        let mut names = json!({".": {}});
        for name in env {
            names[format!("k:{{\"name\":\"{name}\"}}")] = json!({".": {}, "f:name": {}, "f:value": {}});
        }
        json!({
            ".": {}, "f:env": names, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {},
            "f:resources": {".": {}, "f:limits": {".": {}, "f:memory": {}}, "f:requests": {".": {}, "f:cpu": {}, "f:memory": {}}},
            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
        })
    };
    let condition =
        || json!({".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}});
    json!([
        {
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {
                    "f:generateName": {},
                    "f:labels": {".": {}, "f:app.kubernetes.io/name": {}, "f:pod-template-hash": {}, "f:tier": {}},
                    "f:ownerReferences": {".": {}, format!("k:{{\"uid\":\"{owner}\"}}"): {}},
                },
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"app\"}": container(&["POD_NAME", "LOG_LEVEL"])},
                    "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {},
                    "f:terminationGracePeriodSeconds": {},
                },
            },
        },
        {
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1", "subresource": "status",
            "fieldsV1": {"f:status": {
                "f:conditions": {
                    "k:{\"type\":\"ContainersReady\"}": condition(),
                    "k:{\"type\":\"Ready\"}": condition(),
                },
                "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {},
                "f:podIPs": {".": {}, "k:{\"ip\":\"10.0.0.1\"}": {".": {}, "f:ip": {}}}, "f:startTime": {},
            }},
        },
    ])
}

fn spec(chance: &mut Chance, app: &str) -> Value {
    let token = format!("kube-api-access-{}", chance.hex(5));
    let probe = |path: &str, period: u32| {
        json!({
            "httpGet": {"path": path, "port": 8080, "scheme": "HTTP"}, "initialDelaySeconds": 5, "timeoutSeconds": 1,
            "periodSeconds": period, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    let token_mount = || json!({"name": token, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    json!({
        "volumes": [
            {"name": "config", "configMap": {"name": format!("{app}-config"), "defaultMode": 420}},
            {"name": "scratch", "emptyDir": {}},
            {"name": token, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ]}},
        ],
        "containers": [{
            "name": "app",
            "image": format!("registry.example/shop/{app}:v1.{}.{}", chance.below(40), chance.below(20)),
            "ports": [
                {"name": "http", "containerPort": 8080, "protocol": "TCP"},
            ],
            "env": [
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                {"name": "LOG_LEVEL", "value": chance.one_of(&["info", "warn", "debug"])},
                {"name": "DATABASE_URL", "value": format!("postgres://{app}@db-{}.example:5432/{app}", chance.hex(6))},
                {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": format!("{app}-db"), "key": "password"}}},
            ],
            "resources": {
                "limits": {"memory": format!("{}Mi", 128 + chance.below(1024))},
                "requests": {"cpu": format!("{}m", 50 + chance.below(900)), "memory": "128Mi"},
            },
            "volumeMounts": [
                {"name": "config", "readOnly": true, "mountPath": "/etc/app"},
                {"name": "scratch", "mountPath": "/tmp"},
                token_mount(),
            ],
            "livenessProbe": probe("/healthz", 10),
            "readinessProbe": probe("/readyz", 5),
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
        }],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": app,
        "serviceAccount": app,
        "nodeName": format!("node-{:04}", chance.below(1_000)),
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        ],
        "priority": 0,
        "enableServiceLinks": true,
    })
}

fn status(chance: &mut Chance, app: &str, time: &str) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": time});
    let address = format!(
        "10.{}.{}.{}",
        chance.below(250),
        chance.below(250),
        chance.below(250)
    );
    let host = format!("192.168.{}.{}", chance.below(250), chance.below(250));
    json!({
        "phase": "Running",
        "conditions": [
            condition("PodScheduled"), condition("Initialized"), condition("ContainersReady"), condition("Ready"),
        ],
        "hostIP": host,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": time,
        "containerStatuses": [{
            "name": "app",
            "state": {"running": {"startedAt": time}},
            "lastState": {},
            "ready": true,
            "restartCount": chance.below(4),
            "image": format!("registry.example/shop/{app}:v1"),
            "imageID": format!("registry.example/shop/{app}@sha256:{}", chance.hex(64)),
            "containerID": format!("containerd://{}", chance.hex(64)),
            "started": true,
        }],
        "qosClass": "Burstable",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_size_that_is_promised_and_content_of_its_own() {
        let sizes: Vec<usize> = (0..100).map(|index| pod(index).to_string().len()).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((5_250..5_550).contains(&mean), "{mean}");
        assert_ne!(pod(1)["spec"], pod(2)["spec"]);
        assert_eq!(pod(1), pod(1));
    }

    #[test]
    fn a_key_is_that_of_its_pod() {
        let (namespace, name) = pod_key(4_711);
        assert_eq!(pod(4_711)["metadata"]["namespace"], namespace);
        assert_eq!(pod(4_711)["metadata"]["name"], name);
    }
}
