// SPDX-License-Identifier: Apache-2.0
//! Admission: the plugins that kube-apiserver enables by default, which reject or change writes.

mod certificates;
mod classes;
mod limits;
pub(crate) mod priority;
pub(crate) mod quota;
mod resize;
mod runtime_class;
mod security;
pub(crate) mod topology;
mod usage;

use http::StatusCode;

use crate::{
    handler::Target,
    state::Context,
    status::{Failure, Qualified, Result},
    store::Object,
};

/// Returns the rejection of a plugin.
fn forbidden(target: &Target, why: &str) -> Failure {
    Failure::forbidden(target.resource.qualified(), &target.name, why)
}

/// Runs the mutating plugins on a new object, before validation.
pub(crate) fn change_new(cx: &Context<'_>, target: &Target, object: &mut Object) -> Result<()> {
    if target.resource.is("", "pods") {
        limits::set_defaults(cx, target, object);
        priority::admit_pod(cx, target, object)?;
        super::kinds::tolerate_lost_nodes(object);
        runtime_class::admit(cx, target, object)?;
        topology::admit(cx, object);
    } else if target.resource.is("", "persistentvolumeclaims") {
        classes::of_claim(cx, object);
    } else if target.resource.is("networking.k8s.io", "ingresses") {
        classes::of_ingress(cx, object);
    }
    Ok(())
}

/// Runs the validating plugins on a valid object, except the quota, which comes after all others.
pub(crate) fn check_write(
    cx: &mut Context<'_>,
    target: &Target,
    old: Option<&Object>,
    object: &Object,
) -> Result<()> {
    let resource = &target.resource;
    let is_limited = match target.subresource.as_str() {
        "" => resource.is("", "persistentvolumeclaims") || resource.is("", "pods") && old.is_none(),
        "resize" => resource.is("", "pods"),
        _ => false,
    };
    if is_limited {
        limits::check(cx, target, object)?;
    }
    if resource.is("", "pods") && target.subresource.is_empty() && old.is_none() {
        runtime_class::check(cx, target, object)?;
    }
    if resource.is("", "persistentvolumeclaims")
        && target.subresource.is_empty()
        && let Some(old) = old
    {
        resize::check(cx, target, old, object)?;
    }
    certificates::check(cx, target, old, object)?;
    if resource.is("scheduling.k8s.io", "priorityclasses") {
        priority::check_class(cx, target, old.is_none(), object)?;
    }
    if old.is_none() && resource.is("networking.k8s.io", "ingresses") {
        classes::warn_of_annotation(cx, object);
    }
    security::check(cx, target, old, object)
}

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that a create is allowed: the namespace exists and is not terminating, the CRD is not terminating, and the
/// server supports the kind.
pub(crate) fn check_create(cx: &Context<'_>, target: &Target) -> Result<()> {
    let is_policy = target.resource.group == "admissionregistration.k8s.io"
        && target.resource.plural.starts_with("mutatingadmissionpolic");
    if is_policy {
        let message =
            "this server cannot evaluate MutatingAdmissionPolicies: its CEL library cannot construct objects";
        return Err(Failure::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplemented",
            message,
        ));
    }
    if let Some(custom) = &target.resource.custom
        && custom.terminating
    {
        let message = "create not allowed while custom resource definition is terminating";
        return Err(Failure::forbidden(
            target.resource.qualified(),
            &target.name,
            message,
        ));
    }
    if !target.resource.namespaced {
        return Ok(());
    }
    let Some(namespace) = cx.find("", "namespaces", &target.namespace) else {
        return Err(Failure::not_found(
            Qualified {
                group: "",
                name: "namespaces",
            },
            &target.namespace,
        ));
    };
    if namespace.is_deleting() {
        let why = format!(
            "unable to create new content in namespace {} because it is being terminated",
            target.namespace
        );
        let cause = format!("namespace {} is being terminated", target.namespace);
        return Err(
            Failure::forbidden(target.resource.qualified(), &target.name, &why).with_cause(
                "NamespaceTerminating",
                &cause,
                "metadata.namespace",
            ),
        );
    }
    Ok(())
}

/// Rejects the deletion of protected namespaces and of system priority classes.
pub(crate) fn check_delete(target: &Target) -> Result<()> {
    let is_system = || priority::SYSTEM.iter().any(|(name, _, _)| *name == target.name);
    if target.resource.is("scheduling.k8s.io", "priorityclasses") && is_system() {
        return Err(forbidden(
            target,
            "this is a system priority class and cannot be deleted",
        ));
    }
    if target.resource.is("", "namespaces") && IMMORTAL.contains(&target.name.as_str()) {
        return Err(Failure::forbidden(
            target.resource.qualified(),
            &target.name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
