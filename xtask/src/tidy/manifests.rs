// SPDX-License-Identifier: Apache-2.0
//! Packages of the repository, read from their manifests.

use toml::{Table, Value};

use super::tree::Tree;

#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// Path of the manifest.
    pub(super) path: String,
    /// Dependencies and build dependencies, on all platforms.
    pub(super) dependencies: Vec<Dependency>,
    /// Dev-dependencies.
    pub(super) test_dependencies: Vec<Dependency>,
    pub(super) features: Vec<String>,
    /// Set if it belongs to the main workspace; the programs in `bench/peers` have a separate one.
    pub(super) is_member: bool,
}

#[derive(Debug)]
pub(super) struct Dependency {
    /// Name of the package, even if the dependency is renamed.
    pub(super) name: String,
    pub(super) is_optional: bool,
    /// Set if the manifest or the workspace specifies a version.
    pub(super) is_published: bool,
}

impl Package {
    /// Returns the directory of the package, with a trailing `/`.
    pub(super) fn dir(&self) -> &str {
        self.path.trim_end_matches("Cargo.toml")
    }
}

/// Returns all packages of the repository. Skips invalid manifests, which cargo reports.
pub(super) fn packages(tree: &Tree) -> Vec<Package> {
    tree.with_extension("/Cargo.toml")
        .filter_map(|file| package(&file.path, &file.text.parse().ok()?))
        .collect()
}

/// Returns the packages of the main workspace.
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
        dependencies: dependencies(manifest, &["dependencies", "build-dependencies"]),
        test_dependencies: dependencies(manifest, &["dev-dependencies"]),
        features: keys("features"),
        is_member: !manifest.contains_key("workspace"),
    })
}

fn dependencies(manifest: &Table, sections: &[&str]) -> Vec<Dependency> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    std::iter::once(manifest)
        .chain(targets)
        .flat_map(|table| sections.iter().map(|section| table.get(*section)))
        .filter_map(|found| found?.as_table())
        .flatten()
        .map(|(key, value)| Dependency {
            name: value
                .get("package")
                .and_then(Value::as_str)
                .unwrap_or(key)
                .to_owned(),
            is_optional: value.get("optional").and_then(Value::as_bool).unwrap_or(false),
            is_published: value.is_str()
                || value.get("version").is_some()
                || value.get("workspace").is_some(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_targets_and_builds_count_and_those_of_tests_do_not() {
        let manifest = r#"
[package]
name = "a"
[dependencies]
one.workspace = true
two = { workspace = true, optional = true }
[build-dependencies]
alias = { package = "three" }
[target.'cfg(unix)'.dependencies]
four = "1"
[target.'cfg(unix)'.build-dependencies]
five = "1"
[dev-dependencies]
six = "1"
"#;
        let tree = Tree::of(&[("crates/a/Cargo.toml", manifest)]);
        let mut found: Vec<(String, bool)> = packages(&tree)
            .into_iter()
            .flat_map(|package| package.dependencies)
            .map(|dependency| (dependency.name, dependency.is_optional))
            .collect();
        found.sort();
        let expected = [
            ("five", false),
            ("four", false),
            ("one", false),
            ("three", false),
            ("two", true),
        ];
        assert_eq!(
            found,
            expected.map(|(name, is_optional)| (name.to_owned(), is_optional))
        );
    }

    #[test]
    fn a_package_with_a_separate_workspace_is_not_a_member() {
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
