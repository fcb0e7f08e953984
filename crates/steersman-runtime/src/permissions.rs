// SPDX-License-Identifier: Apache-2.0
//! Permissions that follow from what a controller declares.

use steersman_cache::Resource;
use steersman_core::{Permission, PermissionPlace};

use crate::{Kind, kind::WhenAbsent};

/// Returns the permissions that a controller needs to watch and read a kind.
pub(crate) fn watching<T>(kind: &Kind<T>, controller: &str) -> Vec<Permission> {
    let needed_by = needed_by(controller);
    // A server that streams lists gets no request to list.
    let read = on(kind.resource(), "", &needed_by)
        .verbs(["watch"])
        .at_times(["get", "list"]);
    let mut permissions = vec![read];
    if kind.spec.when_absent != WhenAbsent::Error {
        permissions.extend(installed_kinds(&needed_by));
    }
    permissions
}

/// Returns the permissions to record events.
pub(crate) fn events(controller: &str) -> Permission {
    Permission::new("events.k8s.io", "events", &needed_by(controller)).at_times(["create", "patch"])
}

/// Returns the permissions to watch which kinds are installed. Without them the runtime polls discovery.
fn installed_kinds(needed_by: &str) -> [Permission; 2] {
    let watch = |group, resource| {
        Permission::new(group, resource, needed_by)
            .place(PermissionPlace::Cluster)
            .at_times(["list", "watch"])
    };
    [
        watch("apiextensions.k8s.io", "customresourcedefinitions"),
        watch("apiregistration.k8s.io", "apiservices"),
    ]
}

/// Begins a permission on a resource, or on one of its subresources if that is not empty.
pub(crate) fn on(resource: &Resource, subresource: &str, needed_by: &str) -> Permission {
    let plural = resource.plural();
    let name = match subresource {
        "" => plural.to_owned(),
        subresource => format!("{plural}/{subresource}"),
    };
    let place = match resource.is_namespaced() {
        Some(false) => PermissionPlace::Cluster,
        Some(true) | None => PermissionPlace::Watched,
    };
    Permission::new(resource.group(), &name, needed_by).place(place)
}

/// Names a controller as the part of the program that needs a permission.
pub(crate) fn needed_by(controller: &str) -> String {
    format!("controller `{controller}`")
}
