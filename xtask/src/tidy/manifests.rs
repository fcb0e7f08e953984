// SPDX-License-Identifier: Apache-2.0
//! The packages of the tree, as their manifests tell.

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
    /// Whether it belongs to our workspace; the programs of peers have one of their own.
    pub(super) is_member: bool,
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

/// The packages of our workspace.
pub(super) fn members(tree: &Tree) -> Vec<Package> {
    let mut packages = packages(tree);
    packages.retain(|package| package.is_member);
    packages
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
        is_member: !manifest.contains_key("workspace"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_a_workspace_of_its_own_is_no_member() {
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            (
                "bench/peers/b/Cargo.toml",
                "[workspace]\n[package]\nname = \"b\"\n",
            ),
        ]);
        assert_eq!(packages(&tree).len(), 2);
        let names: Vec<String> = members(&tree).into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["a"]);
    }
}
