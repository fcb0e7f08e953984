// SPDX-License-Identifier: Apache-2.0
//! Pods as a Deployment's controller and a kubelet leave them: about 5.4 KB of JSON, 2.4 KB of it the managedFields that
//! a server notes for such a Pod.

use serde_json::{Map, Value, json};

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
    let mut pod = json!({
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
                "pod-template-hash": template,
                "tier": chance.one_of(&["back", "front", "batch"]),
            },
            "annotations": {
                "prometheus.io/scrape": "true",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{template}"),
                "uid": owner, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": spec(chance, app),
        "status": status(chance, app, &created),
    });
    pod["metadata"]["managedFields"] = managed_fields(&pod, &created);
    pod
}

/// Returns the managed fields: the controller manager owns all fields except the status, which the kubelet owns. Except for
/// their order they are equal to those of kube-apiserver 1.37 for the same Pod.
fn managed_fields(pod: &Value, time: &str) -> Value {
    let entry = |manager: &str, fields: Value| {
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        })
    };
    let metadata = ["annotations", "generateName", "labels", "ownerReferences"];
    let metadata = metadata.map(|name| (format!("f:{name}"), fields_of(name, &pod["metadata"][name])));
    let spec = fields_of("", &pod["spec"]);
    let written = json!({"f:metadata": Map::from_iter(metadata), "f:spec": without_itself(spec)});
    let mut status = without_itself(fields_of("", &pod["status"]));
    status.remove("f:qosClass");
    let mut kubelet = entry("kubelet", json!({"f:status": status}));
    kubelet["subresource"] = "status".into();
    json!([entry("kube-controller-manager", written), kubelet])
}

/// Merge keys of lists; other lists are atomic.
fn keys_of(list: &str) -> &'static [&'static str] {
    match list {
        "containers" | "env" | "volumes" => &["name"],
        "conditions" => &["type"],
        "ownerReferences" => &["uid"],
        "podIPs" => &["ip"],
        "ports" => &["containerPort", "protocol"],
        "volumeMounts" => &["mountPath"],
        _ => &[],
    }
}

/// The set of fields in `value`, as FieldsV1 writes it.
fn fields_of(name: &str, value: &Value) -> Value {
    // Atomic fields according to the schema.
    let atomic = [
        "fieldRef",
        "secretKeyRef",
        "emptyDir",
        "securityContext",
        "nodeSelector",
    ]
    .contains(&name);
    match value {
        Value::Object(members) if !atomic => {
            let mut fields = Map::from_iter([(".".to_owned(), json!({}))]);
            fields.extend(
                members
                    .iter()
                    .map(|(name, value)| (format!("f:{name}"), fields_of(name, value))),
            );
            // The items of this one are all that is noted of it.
            Value::Object(fields)
        }
        Value::Array(items) if !keys_of(name).is_empty() => {
            let mut fields = Map::new();
            if name != "containers" {
                fields.insert(".".to_owned(), json!({}));
            }
            for item in items {
                let key = keys_of(name)
                    .iter()
                    .map(|key| ((*key).to_owned(), item[key].clone()));
                let whole = if name == "ownerReferences" {
                    json!({})
                } else {
                    fields_of("", item)
                };
                fields.insert(format!("k:{}", Value::Object(key.collect())), whole);
            }
            Value::Object(fields)
        }
        _ => json!({}),
    }
}

/// Required parts of an object exist with it, so managed fields do not list them.
fn without_itself(fields: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = fields else {
        return Map::new();
    };
    fields.remove(".");
    fields
}

fn spec(chance: &mut Chance, app: &str) -> Value {
    let token = format!("kube-api-access-{}", chance.hex(5));
    let token_mount = || json!({"name": token, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    json!({
        "volumes": [
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
            ],
            "resources": {
                "requests": {"cpu": format!("{}m", 50 + chance.below(900)), "memory": "128Mi"},
            },
            "volumeMounts": [
                token_mount(),
            ],
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
        }],
        "qosClass": "Burstable",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_documented_size_and_unique_content() {
        let sizes: Vec<usize> = (0..100).map(|index| pod(index).to_string().len()).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((5_250..5_550).contains(&mean), "{mean}");
        assert_ne!(pod(1)["spec"], pod(2)["spec"]);
        assert_eq!(pod(1), pod(1));
    }

    #[test]
    fn a_key_matches_its_pod() {
        let (namespace, name) = pod_key(4_711);
        assert_eq!(pod(4_711)["metadata"]["namespace"], namespace);
        assert_eq!(pod(4_711)["metadata"]["name"], name);
    }
}
