// SPDX-License-Identifier: Apache-2.0
//! Defaults of built-in kinds. The real server has them in Go functions; its OpenAPI schema does not contain them.

use serde_json::{Value, json};

use crate::{
    resource::Resource,
    store::{Object, metadata_of},
};

/// Annotation that counts the template changes of a DaemonSet.
pub(crate) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Sets the defaults of a built-in object.
pub(crate) fn apply(resource: &Resource, object: &mut Object) {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => namespace(object),
        ("", "secrets") => secret(object),
        ("", "services") => service(object),
        ("", "pods") => with(object, "spec", pod),
        ("", "podtemplates") => with(object, "template", |template| with(template, "spec", pod_spec)),
        ("apps", "deployments") => with(object, "spec", deployment),
        ("apps", "replicasets") => with(object, "spec", replicas_and_template),
        ("apps", "statefulsets") => with(object, "spec", stateful_set),
        ("apps", "daemonsets") => {
            with(object, "metadata", |metadata| {
                let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
                if annotations.get(TEMPLATE_GENERATION).is_none() {
                    annotations[TEMPLATE_GENERATION] = json!("0");
                }
            });
            with(object, "spec", daemon_set);
        }
        ("batch", "jobs") => with(object, "spec", job),
        ("batch", "cronjobs") => with(object, "spec", cron_job),
        ("discovery.k8s.io", "endpointslices") => each(object, "ports", |port| {
            port.entry("name").or_insert(json!(""));
            put(port, "protocol", json!("TCP"));
        }),
        ("networking.k8s.io", "networkpolicies") => with(object, "spec", network_policy),
        ("scheduling.k8s.io", "priorityclasses") => {
            put(object, "preemptionPolicy", json!("PreemptLowerPriority"))
        }
        ("storage.k8s.io", "storageclasses") => {
            put(object, "reclaimPolicy", json!("Delete"));
            put(object, "volumeBindingMode", json!("Immediate"));
        }
        ("", "persistentvolumeclaims") => with(object, "spec", |spec| {
            put(spec, "volumeMode", json!("Filesystem"))
        }),
        ("", "persistentvolumes") => with(object, "spec", |spec| {
            put(spec, "volumeMode", json!("Filesystem"));
            put(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
        }),
        ("", "limitranges") => with(object, "spec", |spec| each(spec, "limits", limit)),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => {
            each(object, "webhooks", webhook)
        }
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations") => {
            each(object, "webhooks", |hook| {
                webhook(hook);
                put(hook, "reinvocationPolicy", json!("Never"));
            })
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => with(object, "spec", |spec| {
            put(spec, "failurePolicy", json!("Fail"));
            with(spec, "matchConstraints", match_resources);
        }),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            with(object, "spec", |spec| {
                with(spec, "matchResources", match_resources)
            })
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => binding(object),
        ("autoscaling", "horizontalpodautoscalers") => with(object, "spec", autoscaler),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crate::crd::defaults(object),
        ("apiregistration.k8s.io", "apiservices") => with(object, "spec", |spec| {
            with(spec, "service", |service| put(service, "port", json!(443)))
        }),
        _ => {}
    }
}

/// Sets a field if it is absent.
fn put(object: &mut Object, field: &str, value: Value) {
    if object
        .get(field)
        .is_none_or(|known| known.is_null() || *known == json!(""))
    {
        object.insert(field.to_owned(), value);
    }
}

fn with(object: &mut Object, field: &str, fill: impl FnOnce(&mut Object)) {
    if let Some(Value::Object(inner)) = object.get_mut(field) {
        fill(inner);
    }
}

fn each(object: &mut Object, field: &str, fill: impl Fn(&mut Object)) {
    for item in object
        .get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Value::Object(item) = item {
            fill(item);
        }
    }
}

fn namespace(object: &mut Object) {
    let name = metadata_of(object).get("name").cloned().unwrap_or_default();
    if name.as_str().is_some_and(|name| !name.is_empty())
        && let Some(Value::Object(metadata)) = object.get_mut("metadata")
    {
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        labels["kubernetes.io/metadata.name"] = name;
    }
}

fn secret(object: &mut Object) {
    put(object, "type", json!("Opaque"));
    // `stringData` is write-only: its entries move to `data`.
    let Some(Value::Object(plain)) = object.remove("stringData") else {
        return;
    };
    let data = object.entry("data").or_insert_with(|| json!({}));
    for (key, value) in plain {
        use base64::Engine as _;
        data[key] =
            json!(base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default()));
    }
}

fn service(object: &mut Object) {
    with(object, "spec", |spec| {
        put(spec, "sessionAffinity", json!("None"));
        if spec.get("sessionAffinity") == Some(&json!("ClientIP")) {
            put(
                spec,
                "sessionAffinityConfig",
                json!({"clientIP": {"timeoutSeconds": 10800}}),
            );
        }
        put(spec, "type", json!("ClusterIP"));
        if spec.get("type") != Some(&json!("ExternalName")) {
            put(spec, "internalTrafficPolicy", json!("Cluster"));
        }
        each(spec, "ports", |port| {
            put(port, "protocol", json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            if port
                .get("targetPort")
                .is_none_or(|target| *target == json!(0) || *target == json!(""))
            {
                port.insert("targetPort".to_owned(), number);
            }
        });
    });
}

fn pod_template(spec: &mut Object) {
    with(spec, "template", |template| with(template, "spec", pod_spec));
}

/// Sets the defaults of Pods that templates do not get.
fn pod(spec: &mut Object) {
    pod_spec(spec);
    put(spec, "enableServiceLinks", json!(true));
    if spec
        .get("terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .is_some_and(|seconds| seconds < 0)
    {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    for containers in ["containers", "initContainers"] {
        each(spec, containers, |container| {
            with(container, "resources", requests)
        });
    }
}

/// Copies each limit to the requests if the request is absent.
fn requests(resources: &mut Object) {
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else {
        return;
    };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    for (name, limit) in limits {
        if requests.get(&name).is_none() {
            requests[name] = limit;
        }
    }
}

fn pod_spec(spec: &mut Object) {
    put(spec, "restartPolicy", json!("Always"));
    put(spec, "terminationGracePeriodSeconds", json!(30));
    put(spec, "dnsPolicy", json!("ClusterFirst"));
    put(spec, "securityContext", json!({}));
    put(spec, "schedulerName", json!("default-scheduler"));
    // The deprecated field always equals the new one.
    match (
        spec.get("serviceAccountName").cloned(),
        spec.get("serviceAccount").cloned(),
    ) {
        (Some(name), _) => {
            spec.insert("serviceAccount".to_owned(), name);
        }
        (None, Some(name)) => {
            spec.insert("serviceAccountName".to_owned(), name);
        }
        (None, None) => {}
    }
    for containers in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, containers, container);
    }
    each(spec, "volumes", |volume| {
        if volume.len() == 1 {
            volume.insert("emptyDir".to_owned(), json!({}));
        }
        with(volume, "secret", |source| put(source, "defaultMode", json!(420)));
        with(volume, "configMap", |source| {
            put(source, "defaultMode", json!(420))
        });
        with(volume, "downwardAPI", |source| {
            put(source, "defaultMode", json!(420))
        });
        with(volume, "downwardAPI", downward);
        with(volume, "projected", |projected| {
            put(projected, "defaultMode", json!(420));
            each(projected, "sources", |source| {
                with(source, "serviceAccountToken", |token| {
                    put(token, "expirationSeconds", json!(3600))
                });
                with(source, "downwardAPI", downward);
            });
        });
        with(volume, "hostPath", |source| put(source, "type", json!("")));
        with(volume, "iscsi", |source| {
            put(source, "iscsiInterface", json!("default"))
        });
        with(volume, "ephemeral", |source| {
            with(source, "volumeClaimTemplate", |claim| {
                with(claim, "spec", claim_spec)
            })
        });
    });
    if spec.get("hostNetwork") == Some(&json!(true)) {
        // With the host network, host ports equal container ports.
        for containers in ["containers", "initContainers"] {
            each(spec, containers, |container| {
                each(container, "ports", |port| {
                    let number = port.get("containerPort").cloned().unwrap_or_default();
                    if port.get("hostPort").is_none_or(|known| *known == json!(0)) {
                        port.insert("hostPort".to_owned(), number);
                    }
                })
            });
        }
    }
}

fn downward(source: &mut Object) {
    each(source, "items", |item| {
        with(item, "fieldRef", |field| put(field, "apiVersion", json!("v1")))
    });
}

fn claim_spec(spec: &mut Object) {
    put(spec, "volumeMode", json!("Filesystem"));
}

fn http_get(get: &mut Object) {
    put(get, "path", json!("/"));
    put(get, "scheme", json!("HTTP"));
}

fn container(container: &mut Object) {
    put(container, "terminationMessagePath", json!("/dev/termination-log"));
    put(container, "terminationMessagePolicy", json!("File"));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && (!tag.contains(':') || tag.ends_with(":latest"));
    put(
        container,
        "imagePullPolicy",
        json!(if latest { "Always" } else { "IfNotPresent" }),
    );
    each(container, "ports", |port| put(port, "protocol", json!("TCP")));
    each(container, "env", |env| {
        with(env, "valueFrom", |source| {
            with(source, "fieldRef", |field| put(field, "apiVersion", json!("v1")))
        });
    });
    with(container, "lifecycle", |lifecycle| {
        for hook in ["preStop", "postStart"] {
            with(lifecycle, hook, |hook| with(hook, "httpGet", http_get));
        }
    });
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        with(container, probe, |probe| {
            put(probe, "timeoutSeconds", json!(1));
            put(probe, "periodSeconds", json!(10));
            put(probe, "successThreshold", json!(1));
            put(probe, "failureThreshold", json!(3));
            with(probe, "httpGet", http_get);
            with(probe, "grpc", |grpc| put(grpc, "service", json!("")));
        });
    }
}

fn replicas_and_template(spec: &mut Object) {
    put(spec, "replicas", json!(1));
    pod_template(spec);
}

fn deployment(spec: &mut Object) {
    replicas_and_template(spec);
    put(spec, "revisionHistoryLimit", json!(10));
    put(spec, "progressDeadlineSeconds", json!(600));
    put(spec, "strategy", json!({}));
    with(spec, "strategy", |strategy| {
        put(strategy, "type", json!("RollingUpdate"));
        if strategy.get("type") == Some(&json!("RollingUpdate")) {
            put(strategy, "rollingUpdate", json!({}));
            with(strategy, "rollingUpdate", |rolling| {
                put(rolling, "maxUnavailable", json!("25%"));
                put(rolling, "maxSurge", json!("25%"));
            });
        }
    });
}

fn stateful_set(spec: &mut Object) {
    replicas_and_template(spec);
    put(spec, "podManagementPolicy", json!("OrderedReady"));
    put(spec, "revisionHistoryLimit", json!(10));
    put(spec, "updateStrategy", json!({}));
    with(spec, "updateStrategy", |strategy| {
        put(strategy, "type", json!("RollingUpdate"));
        if strategy.get("type") == Some(&json!("RollingUpdate")) {
            put(strategy, "rollingUpdate", json!({}));
            with(strategy, "rollingUpdate", |rolling| {
                put(rolling, "partition", json!(0));
                put(rolling, "maxUnavailable", json!(1));
            });
        }
    });
    put(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
    with(spec, "persistentVolumeClaimRetentionPolicy", |policy| {
        put(policy, "whenDeleted", json!("Retain"));
        put(policy, "whenScaled", json!("Retain"));
    });
    each(spec, "volumeClaimTemplates", |claim| {
        put(claim, "apiVersion", json!("v1"));
        put(claim, "kind", json!("PersistentVolumeClaim"));
        with(claim, "spec", claim_spec);
        with(claim, "status", |status| put(status, "phase", json!("Pending")));
    });
}

fn daemon_set(spec: &mut Object) {
    pod_template(spec);
    put(spec, "revisionHistoryLimit", json!(10));
    put(spec, "updateStrategy", json!({}));
    with(spec, "updateStrategy", |strategy| {
        put(strategy, "type", json!("RollingUpdate"));
        if strategy.get("type") == Some(&json!("RollingUpdate")) {
            put(strategy, "rollingUpdate", json!({}));
            with(strategy, "rollingUpdate", |rolling| {
                put(rolling, "maxUnavailable", json!(1));
                put(rolling, "maxSurge", json!(0));
            });
        }
    });
}

fn job(spec: &mut Object) {
    pod_template(spec);
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        put(spec, "completions", json!(1));
    }
    put(spec, "parallelism", json!(1));
    put(spec, "backoffLimit", json!(6));
    put(spec, "completionMode", json!("NonIndexed"));
    put(spec, "suspend", json!(false));
    put(spec, "manualSelector", json!(false));
    put(spec, "podReplacementPolicy", json!("TerminatingOrFailed"));
}

fn cron_job(spec: &mut Object) {
    put(spec, "concurrencyPolicy", json!("Allow"));
    put(spec, "suspend", json!(false));
    put(spec, "successfulJobsHistoryLimit", json!(3));
    put(spec, "failedJobsHistoryLimit", json!(1));
    with(spec, "jobTemplate", |template| {
        with(template, "spec", pod_template)
    });
}

fn binding(object: &mut Object) {
    with(object, "roleRef", |role| {
        put(role, "apiGroup", json!("rbac.authorization.k8s.io"))
    });
    each(object, "subjects", |subject| {
        if matches!(
            subject.get("kind").and_then(Value::as_str),
            Some("User" | "Group")
        ) {
            put(subject, "apiGroup", json!("rbac.authorization.k8s.io"));
        }
    });
}

fn autoscaler(spec: &mut Object) {
    put(spec, "minReplicas", json!(1));
    let is_empty = |value: &Value| value.is_null() || *value == json!([]);
    if spec.get("metrics").is_none_or(is_empty) {
        let target = json!({"type": "Utilization", "averageUtilization": 80});
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".to_owned(), json!([cpu]));
    }
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    with(spec, "behavior", |behavior| {
        put(behavior, "scaleUp", json!({}));
        put(behavior, "scaleDown", json!({}));
        with(behavior, "scaleUp", |rules| {
            put(rules, "stabilizationWindowSeconds", json!(0));
            put(rules, "selectPolicy", json!("Max"));
            put(rules, "policies", json!([pods, percent]));
        });
        with(behavior, "scaleDown", |rules| {
            put(rules, "selectPolicy", json!("Max"));
            put(rules, "policies", json!([percent]));
        });
    });
}

fn network_policy(spec: &mut Object) {
    let mut types = vec![json!("Ingress")];
    if spec.contains_key("egress") {
        types.push(json!("Egress"));
    }
    put(spec, "policyTypes", Value::Array(types));
}

/// Defaults a container limit: `default` from `max`, then `defaultRequest` from `default` and `min`.
fn limit(limit: &mut Object) {
    if limit.get("type") != Some(&json!("Container")) {
        return;
    }
    for (from, to) in [
        ("max", "default"),
        ("default", "defaultRequest"),
        ("min", "defaultRequest"),
    ] {
        let Some(Value::Object(values)) = limit.get(from).cloned() else {
            continue;
        };
        let target = limit.entry(to).or_insert_with(|| json!({}));
        for (name, value) in values {
            if target.get(&name).is_none() {
                target[name] = value;
            }
        }
    }
}

fn webhook(hook: &mut Object) {
    put(hook, "failurePolicy", json!("Fail"));
    put(hook, "matchPolicy", json!("Equivalent"));
    put(hook, "namespaceSelector", json!({}));
    put(hook, "objectSelector", json!({}));
    put(hook, "timeoutSeconds", json!(10));
    each(hook, "rules", |rule| put(rule, "scope", json!("*")));
    with(hook, "clientConfig", |config| {
        with(config, "service", |service| put(service, "port", json!(443)))
    });
}

fn match_resources(resources: &mut Object) {
    put(resources, "matchPolicy", json!("Equivalent"));
    put(resources, "namespaceSelector", json!({}));
    put(resources, "objectSelector", json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        each(resources, rules, |rule| put(rule, "scope", json!("*")));
    }
}
