// SPDX-License-Identifier: Apache-2.0
//! Tenants: each `Tenant` has namespaces, and in each of them a role for its members, a quota and a network policy.
//!
//! The objects are an [apply set](steersman::manual::apply_sets). A namespace that a tenant does not name any more is deleted, and
//! everything is deleted with the tenant.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Namespace, ResourceQuota},
    networking::v1::NetworkPolicy,
    rbac::v1::RoleBinding,
};
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{
    kit::{ApplySet, ApplySetParent, DeletesApplySet},
    prelude::*,
    runtime::AddError,
};

/// Desired state of a tenant.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "examples.steersman.dev",
    version = "v1",
    kind = "Tenant",
    status = "TenantStatus"
)]
#[serde(default)]
pub struct TenantSpec {
    /// Namespaces of the tenant. Their names get the name of the tenant as prefix.
    pub namespaces: Vec<String>,
    /// Users that administer these namespaces.
    pub admins: Vec<String>,
    /// Quota of each namespace, such as `pods: 10`.
    pub quota: BTreeMap<String, String>,
}

/// Observed state of a tenant.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantStatus {
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the tenant.
    pub conditions: Conditions<TenantCondition>,
}

/// Conditions of a tenant. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum TenantCondition {
    /// The namespaces and their content are as they should be.
    Provisioned,
}

/// Reconciles the objects of a tenant.
#[derive(Debug)]
pub struct Tenants;

impl KindReconciler for Tenants {
    type Kind = Tenant;
    type Status = TenantStatus;
    type Children = (Namespace, RoleBinding, ResourceQuota, NetworkPolicy);
    type Finalizer = DeletesApplySet;

    async fn reconcile(&self, tenant: &Tenant, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let mut set = ApplySet::new();
        for name in &tenant.spec.namespaces {
            let namespace = format!("{}-{name}", tenant.name_any());
            set.add(labelled(tenant, &namespace)?);
            set.add(admins(tenant, &namespace)?);
            set.add(quota(tenant, &namespace)?);
            set.add(isolation(&namespace)?);
        }
        work.apply_set(TenantCondition::Provisioned, &set).await;
        Ok(Action::await_change())
    }
}

impl ApplySetParent for Tenants {
    const FINALIZER: &'static str = "examples.steersman.dev/tenant";
}

fn labelled(tenant: &Tenant, name: &str) -> Result<Namespace, serde_json::Error> {
    let labels = json!({"examples.steersman.dev/tenant": tenant.name_any()});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))
}

fn admins(tenant: &Tenant, namespace: &str) -> Result<RoleBinding, serde_json::Error> {
    let subject =
        |user: &String| json!({"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"});
    let subjects: Vec<_> = tenant.spec.admins.iter().map(subject).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "admins", "namespace": namespace},
        "roleRef": {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": subjects,
    }))
}

fn quota(tenant: &Tenant, namespace: &str) -> Result<ResourceQuota, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": "tenant", "namespace": namespace},
        "spec": {"hard": tenant.spec.quota},
    }))
}

/// Only pods of the same namespace can connect.
fn isolation(namespace: &str) -> Result<NetworkPolicy, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": "isolation", "namespace": namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
    }))
}

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager) -> Result<Controller, AddError> {
    Controller::of::<Tenant>("tenants")
        .when_installed()
        .add_to(manager, managed(Tenants))
}
