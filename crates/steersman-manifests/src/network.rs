// SPDX-License-Identifier: Apache-2.0
//! Metrics for scrapers, and the network policy.

use serde_json::{Value, json};

use crate::{HEALTH_PORT, METRICS_PORT, Operator, target::Target};

/// Returns the Service of the metrics, and the cluster role to bind to a scraper.
pub(crate) fn metrics(operator: &Operator, target: &Target<'_>) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": operator.metadata(&metrics_name(operator), target),
            "spec": {
                "selector": operator.labels(),
                "ports": [{"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"}],
            },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": operator.cluster_metadata(&format!("{}-metrics-reader", operator.name)),
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
        }),
    ]
}

/// Returns the policy: probes from everywhere, because kubelets have no namespace; metrics from labelled namespaces. The
/// operator reaches every address, because that of the API server is not known.
pub(crate) fn policy(operator: &Operator, target: &Target<'_>) -> Value {
    let mut ingress = vec![
        json!({"ports": [{"port": HEALTH_PORT, "protocol": "TCP"}]}),
        json!({
            "from": [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}],
            "ports": [{"port": METRICS_PORT, "protocol": "TCP"}],
        }),
    ];
    let further = operator.ports.iter();
    ingress.extend(further.map(|(_, port)| json!({"ports": [{"port": port, "protocol": "TCP"}]})));
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": operator.metadata(&operator.name, target),
        "spec": {
            "podSelector": {"matchLabels": operator.labels()},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    })
}

/// Returns the ServiceMonitor. The certificate of the metrics is self-signed; the token of the scraper is verified.
pub(crate) fn monitor(operator: &Operator, target: &Target<'_>) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": operator.metadata(&metrics_name(operator), target),
        "spec": {
            "selector": {"matchLabels": operator.labels()},
            "endpoints": [{
                "port": "metrics",
                "path": "/metrics",
                "scheme": "https",
                "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
                "tlsConfig": {"insecureSkipVerify": true},
            }],
        },
    })
}

fn metrics_name(operator: &Operator) -> String {
    format!("{}-metrics", operator.name)
}
