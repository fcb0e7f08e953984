// SPDX-License-Identifier: Apache-2.0
//! Whether a write is let in: namespaces must exist and live, some may not be deleted.

use crate::{
    handler::Target,
    state::Context,
    status::{Failure, Qualified, Result},
};

/// Namespaces that the server cannot do without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Objects are created only in namespaces that exist and are not going away.
pub(crate) fn check_create(cx: &Context<'_>, target: &Target) -> Result<()> {
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

/// Some namespaces stay.
pub(crate) fn check_delete(target: &Target) -> Result<()> {
    if target.resource.is("", "namespaces") && IMMORTAL.contains(&target.name.as_str()) {
        return Err(Failure::forbidden(
            target.resource.qualified(),
            &target.name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
