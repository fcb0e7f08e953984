// SPDX-License-Identifier: Apache-2.0
//! The built-in kinds, from the rows that `data/generate.py` generates.

use std::sync::Arc;

use serde::Deserialize;

use super::{Resource, ScalePaths, Subresource, Version, strategy};
use crate::{
    schema::Schema,
    store::{StorageId, Store},
};

static ROWS: &str = include_str!("../../data/resources.txt");

/// Subresources that need a kubelet or a proxy: discovery lists them, but they are not served.
pub(crate) const NEEDS_KUBELET: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// Kinds that the server itself reads while it handles requests.
const READ_BY_SERVER: [&str; 8] = [
    "namespaces",
    "serviceaccounts",
    "clusterroles",
    "clusterrolebindings",
    "roles",
    "rolebindings",
    "customresourcedefinitions",
    "apiservices",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    group: String,
    version: String,
    resource: String,
    kind: String,
    namespaced: bool,
    singular: String,
    verbs: Vec<String>,
    definition: Option<String>,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    subresources: Vec<SubRow>,
}

#[derive(Deserialize)]
struct SubRow {
    name: String,
    verbs: Vec<String>,
    kind: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
}

/// Returns all built-in kinds in the order of the real server's discovery.
pub(crate) fn resources(store: &mut Store) -> Vec<Resource> {
    let mut resources: Vec<Resource> = Vec::new();
    for line in ROWS.lines() {
        let row: Row = serde_json::from_str(line).expect("the generated rows are JSON");
        let version = version(&row);
        if let Some(known) = resources
            .iter_mut()
            .find(|known| known.is(&row.group, &row.resource))
        {
            // The first row of a kind is the preferred version; the first stable version is the stored one.
            known.versions.push(version);
            continue;
        }
        let storage = storage(&resources, &row, store);
        if READ_BY_SERVER.contains(&row.resource.as_str()) {
            store.keep_decoded(storage);
        }
        resources.push(Resource {
            strategy: strategy::builtin(&row.group, &row.resource),
            list_kind: format!("{}List", row.kind),
            group: row.group,
            plural: row.resource,
            singular: row.singular,
            kind: row.kind,
            namespaced: row.namespaced,
            short_names: row.short_names,
            categories: row.categories,
            verbs: row.verbs,
            versions: vec![version],
            storage,
            custom: None,
            epoch: 0,
            floor: 0,
        });
    }
    resources
}

/// Returns the storage of a kind; both groups of Events share one.
fn storage(known: &[Resource], row: &Row, store: &mut Store) -> StorageId {
    let shared = known
        .iter()
        .find(|known| row.resource == "events" && known.plural == "events");
    shared.map_or_else(|| store.allocate(), |shared| shared.storage)
}

fn version(row: &Row) -> Version {
    let subresources: Vec<Subresource> = row
        .subresources
        .iter()
        .map(|sub| Subresource {
            name: sub.name.clone(),
            group: sub.group.clone(),
            version: sub.version.clone(),
            kind: sub.kind.clone(),
            verbs: sub.verbs.clone(),
        })
        .collect();
    let path = |path: &str| path.split('.').map(str::to_owned).collect::<Vec<_>>();
    Version {
        columns: Vec::new(),
        name: row.version.clone(),
        served: true,
        schema: Arc::new(match &row.definition {
            Some(name) => Schema {
                reference: Some(name.clone()),
                ..Schema::default()
            },
            None => Schema::anything(),
        }),
        cel: None,
        scale: subresources
            .iter()
            .any(|sub| sub.name == "scale")
            .then(|| ScalePaths {
                spec: path("spec.replicas"),
                status: path("status.replicas"),
                selector: Some(path("spec.selector")),
            }),
        subresources,
        selectable: Vec::new(),
        deprecation: deprecation(row),
    }
}

fn deprecation(row: &Row) -> Option<String> {
    match (row.group.as_str(), row.resource.as_str()) {
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned())
        }
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+".to_owned()),
        _ => None,
    }
}
