// SPDX-License-Identifier: Apache-2.0
//! Choices of the person who deploys an operator.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Choices for a deployment; the values of the Helm chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Values {
    /// Container image of the operator.
    pub image: Image,
    /// Number of replicas. One of them acts, the others stand by.
    pub replicas: u32,
    /// Namespaces in which the operator works. Empty for all.
    pub watch_namespaces: Vec<String>,
    /// Further arguments of the program.
    pub args: Vec<String>,
    /// Log filter (`RUST_LOG`).
    pub log_filter: String,
    /// Resource requests and limits of the container.
    #[schemars(schema_with = "any_object")]
    pub resources: Value,
    /// Installs the CRDs.
    pub crds: bool,
    /// Creates a NetworkPolicy, by which only namespaces with the label `metrics: enabled` reach the metrics.
    pub network_policy: bool,
    /// Creates a PodDisruptionBudget.
    pub pod_disruption_budget: bool,
    /// Creates a ServiceMonitor. Requires the CRDs of the Prometheus operator.
    pub service_monitor: bool,
    /// Annotations of the Pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// Node selector of the Pods.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the Pods.
    #[schemars(schema_with = "any_array")]
    pub tolerations: Vec<Value>,
    /// Affinity of the Pods.
    #[schemars(schema_with = "any_object")]
    pub affinity: Value,
}

/// Container image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Image {
    /// Registry and name, such as `ghcr.io/example/web-operator`.
    pub repository: String,
    /// Tag, or `sha256:…` for a digest.
    pub tag: String,
    /// Pull policy.
    pub pull_policy: String,
}

impl Image {
    /// Reads a reference, such as `ghcr.io/example/web-operator:1.2` or `…@sha256:…`. Without a tag it is `latest`.
    ///
    /// ```
    /// use steersman_manifests::Image;
    ///
    /// let image = Image::parse("localhost:5000/web");
    /// assert_eq!((&*image.repository, &*image.tag), ("localhost:5000/web", "latest"));
    /// assert_eq!(Image::parse("web:1.2").reference(), "web:1.2");
    /// assert_eq!(Image::parse("web@sha256:0a").reference(), "web@sha256:0a");
    /// ```
    #[must_use]
    pub fn parse(reference: &str) -> Self {
        let (repository, tag) = match reference.split_once('@') {
            Some(digest) => digest,
            None => match reference.rsplit_once(':') {
                Some((repository, tag)) if !tag.contains('/') => (repository, tag),
                _ => (reference, "latest"),
            },
        };
        Self {
            repository: repository.to_owned(),
            tag: tag.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the reference.
    #[must_use]
    pub fn reference(&self) -> String {
        let separator = if self.tag.starts_with("sha256:") { '@' } else { ':' };
        format!("{}{separator}{}", self.repository, self.tag)
    }
}

impl Default for Image {
    fn default() -> Self {
        Self {
            repository: String::new(),
            tag: "latest".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }
}

impl Default for Values {
    fn default() -> Self {
        Self {
            image: Image::default(),
            replicas: 2,
            watch_namespaces: Vec::new(),
            args: Vec::new(),
            log_filter: "info".to_owned(),
            resources: json!({"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}}),
            crds: true,
            network_policy: true,
            pod_disruption_budget: true,
            service_monitor: false,
            pod_annotations: BTreeMap::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            affinity: json!({}),
        }
    }
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object"})
}

fn any_array(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "array"})
}
