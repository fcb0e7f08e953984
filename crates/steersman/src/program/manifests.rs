// SPDX-License-Identifier: Apache-2.0
//! The subcommands that write manifests.

use std::{io::Write, path::Path};

use steersman_core::{Permission, PermissionPlace};
use steersman_manifests::{File, write_files};

use super::{
    CrdPolicy, Program,
    args::{HelmArgs, ManifestArgs},
};
use crate::Error;

pub(super) fn rbac(program: &Program, args: &ManifestArgs, output: &mut impl Write) -> Result<(), Error> {
    let namespace = args.namespace.as_deref().unwrap_or(program.name);
    let yaml = program
        .manifests()
        .rbac_yaml(namespace, &args.values(program.name));
    Ok(write!(output, "{yaml}")?)
}

pub(super) fn manifests(
    program: &Program,
    args: &ManifestArgs,
    output: &mut impl Write,
) -> Result<(), Error> {
    let namespace = args.namespace.as_deref().unwrap_or(program.name);
    let (operator, values) = (program.manifests(), args.values(program.name));
    match &args.output {
        Some(directory) => write_all(directory, &operator.kustomize(namespace, &values), output),
        None => Ok(write!(output, "{}", operator.yaml(namespace, &values))?),
    }
}

pub(super) fn helm(program: &Program, args: &HelmArgs, output: &mut impl Write) -> Result<(), Error> {
    let files = program.manifests().helm(&args.values(program.name));
    write_all(&args.output, &files, output)
}

fn write_all(directory: &Path, files: &[File], output: &mut impl Write) -> Result<(), Error> {
    for path in write_files(directory, files)? {
        writeln!(output, "wrote {}", path.display())?;
    }
    Ok(())
}

/// Returns the permissions of the program apart from its controllers.
pub(super) fn own_permissions(program: &Program) -> Vec<Permission> {
    let lease = Permission::new("coordination.k8s.io", "leases", "the leader election")
        .named(program.name)
        .place(PermissionPlace::Own)
        .at_times(["create", "get", "list", "update", "watch"]);
    let log_filter = Permission::new("", "configmaps", "the log filter")
        .named(program.name)
        .place(PermissionPlace::Own)
        .at_times(["get", "list", "watch"]);
    let review = |group, resource| {
        Permission::new(group, resource, "the authorization of metrics")
            .place(PermissionPlace::Cluster)
            .at_times(["create"])
    };
    let mut permissions = vec![
        lease,
        log_filter,
        review("authentication.k8s.io", "tokenreviews"),
        review("authorization.k8s.io", "subjectaccessreviews"),
    ];
    let verbs: &[&str] = match program.crd_policy {
        CrdPolicy::Install => &["create", "get", "patch"],
        CrdPolicy::Check | CrdPolicy::Warn => &["get"],
        CrdPolicy::External => &[],
    };
    let names = program
        .crds
        .iter()
        .filter_map(|crd| crd["metadata"]["name"].as_str());
    let crds = names.filter(|_| !verbs.is_empty()).map(|name| {
        Permission::new(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "the CRD policy",
        )
        .named(name)
        .place(PermissionPlace::Cluster)
        .at_times(verbs.iter().copied())
    });
    permissions.extend(crds);
    permissions
}
