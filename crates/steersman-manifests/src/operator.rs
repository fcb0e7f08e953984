// SPDX-License-Identifier: Apache-2.0
//! Description of an operator.

use serde_json::{Value, json};
use steersman_core::Permission;

use crate::{File, Values, deployment, helm, kustomize, network, rbac, target::Target, yaml};

/// Description of an operator, from which its manifests are computed.
#[derive(Clone, Debug)]
#[must_use = "manifests are made by `yaml`, `kustomize` or `helm`"]
pub struct Operator {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) crds: Vec<Value>,
    pub(crate) permissions: Vec<Permission>,
    pub(crate) ports: Vec<(String, u16)>,
    pub(crate) further: Vec<(String, Value)>,
}

/// Objects of one file, and the value that decides whether Helm creates them.
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) objects: Vec<Value>,
    pub(crate) condition: Option<&'static str>,
}

impl Operator {
    /// Begins a description. All objects have this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            crds: Vec::new(),
            permissions: Vec::new(),
            ports: Vec::new(),
            further: Vec::new(),
        }
    }

    /// Version of the Helm chart and of the program in it. Default: `0.1.0`.
    pub fn version(mut self, version: &str) -> Self {
        self.version = version.to_owned();
        self
    }

    /// Adds CRDs.
    pub fn crds(mut self, crds: impl IntoIterator<Item = Value>) -> Self {
        self.crds.extend(crds);
        self
    }

    /// Adds permissions.
    pub fn permissions(mut self, permissions: impl IntoIterator<Item = Permission>) -> Self {
        self.permissions.extend(permissions);
        self
    }

    /// Adds a port of the container, such as that of a webhook server.
    pub fn port(mut self, name: &str, port: u16) -> Self {
        self.ports.push((name.to_owned(), port));
        self
    }

    /// Adds an object to the file of this name, without its extension, such as the Service and the registrations of a webhook.
    /// A namespaced object without a namespace gets that of the operator from kustomize and Helm.
    pub fn object(mut self, file: &str, object: Value) -> Self {
        self.further.push((file.to_owned(), object));
        self
    }

    /// Returns the CRDs as YAML documents.
    #[must_use]
    pub fn crds_yaml(&self) -> String {
        yaml::documents(&self.crds)
    }

    /// Returns service account, roles and bindings as YAML documents.
    #[must_use]
    pub fn rbac_yaml(&self, namespace: &str, values: &Values) -> String {
        yaml::documents(&self.rbac_objects(namespace, values))
    }

    /// Returns service account, roles and bindings.
    #[must_use]
    pub fn rbac_objects(&self, namespace: &str, values: &Values) -> Vec<Value> {
        rbac::objects(self, &Target::plain(namespace, values))
    }

    /// Returns all objects, in the order in which they have to be created.
    #[must_use]
    pub fn objects(&self, namespace: &str, values: &Values) -> Vec<Value> {
        let target = Target::plain(namespace, values);
        let sections = self.sections(&target);
        sections.into_iter().flat_map(|section| section.objects).collect()
    }

    /// Returns all objects as YAML documents.
    #[must_use]
    pub fn yaml(&self, namespace: &str, values: &Values) -> String {
        yaml::documents(&self.objects(namespace, values))
    }

    /// Returns a kustomize base and an overlay for your edits.
    #[must_use]
    pub fn kustomize(&self, namespace: &str, values: &Values) -> Vec<File> {
        kustomize::files(self, namespace, values)
    }

    /// Returns a Helm chart. `values` are its default values.
    #[must_use]
    pub fn helm(&self, values: &Values) -> Vec<File> {
        helm::files(self, values)
    }

    /// Returns the files of a target. A section without objects is left out.
    pub(crate) fn sections(&self, target: &Target<'_>) -> Vec<Section> {
        let section = |name: &str, objects, condition| Section {
            name: name.to_owned(),
            objects,
            condition,
        };
        let values = target.values();
        let if_set = |is_set: bool, objects: Vec<Value>| match target.is_helm() || is_set {
            true => objects,
            false => Vec::new(),
        };
        let mut sections = vec![
            section("crds", if_set(values.crds, self.crds.clone()), Some("crds")),
            section("rbac", rbac::objects(self, target), None),
            section("deployment", vec![deployment::deployment(self, target)], None),
            section(
                "disruption",
                if_set(
                    values.pod_disruption_budget,
                    vec![deployment::budget(self, target)],
                ),
                Some("podDisruptionBudget"),
            ),
            section("metrics", network::metrics(self, target), None),
            section(
                "network",
                if_set(values.network_policy, vec![network::policy(self, target)]),
                Some("networkPolicy"),
            ),
            section(
                "monitor",
                if_set(values.service_monitor, vec![network::monitor(self, target)]),
                Some("serviceMonitor"),
            ),
        ];
        for (file, object) in &self.further {
            match sections.iter_mut().find(|section| section.name == *file) {
                Some(section) => section.objects.push(object.clone()),
                None => sections.push(section(file, vec![object.clone()], None)),
            }
        }
        sections.retain(|section| !section.objects.is_empty());
        sections
    }

    pub(crate) fn labels(&self) -> Value {
        json!({"app.kubernetes.io/name": self.name})
    }

    /// Metadata of a namespaced object of the operator.
    pub(crate) fn metadata(&self, name: &str, target: &Target<'_>) -> Value {
        json!({"name": name, "namespace": target.namespace(), "labels": self.labels()})
    }

    /// Metadata of a cluster-scoped object of the operator.
    pub(crate) fn cluster_metadata(&self, name: &str) -> Value {
        json!({"name": name, "labels": self.labels()})
    }
}
