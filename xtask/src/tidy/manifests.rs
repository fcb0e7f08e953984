// SPDX-License-Identifier: Apache-2.0
//! The packages of the workspace, as their manifests tell.

use toml::{Table, Value};

use super::tree::Tree;

#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// The manifest's path.
    pub(super) path: String,
    /// What the package itself needs, not its tests.
    pub(super) dependencies: Vec<String>,
    pub(super) features: Vec<String>,
}

impl Package {
    /// The directory of the package, with a `/` behind it.
    pub(super) fn dir(&self) -> &str {
        self.path.trim_end_matches("Cargo.toml")
    }
}

/// Every package of the tree. A manifest that is no TOML is cargo's to complain about.
pub(super) fn packages(tree: &Tree) -> Vec<Package> {
    tree.with_extension("/Cargo.toml")
        .filter_map(|file| package(&file.path, &file.text.parse().ok()?))
        .collect()
}

fn package(path: &str, manifest: &Table) -> Option<Package> {
    let keys = |name: &str| -> Vec<String> {
        manifest
            .get(name)
            .and_then(Value::as_table)
            .map(|table| table.keys().cloned().collect())
            .unwrap_or_default()
    };
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    Some(Package {
        name,
        path: path.to_owned(),
        dependencies: keys("dependencies"),
        features: keys("features"),
    })
}
