// SPDX-License-Identifier: Apache-2.0
//! The crates that a release publishes, as `cargo metadata` describes them.

use serde_json::Value;

use super::dependencies;
use crate::Failure;

/// The feature that libraries leave to the program that uses them. A build of one library alone has to choose it.
const VERSION_FEATURE: &str = "k8s-openapi/latest";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) has_library: bool,
    pub(super) is_macro: bool,
    /// Features of the crate, without `default`.
    features: Vec<String>,
    /// Set if the version of `k8s-openapi` is left to the user.
    leaves_version_open: bool,
    docs: Docs,
}

/// `[package.metadata.docs.rs]`
#[derive(Debug, Default, PartialEq, Eq)]
struct Docs {
    features: Vec<String>,
    all_features: bool,
}

/// Returns the crates of the workspace that are published.
pub(super) fn read() -> Result<Vec<Published>, Failure> {
    let metadata = dependencies::metadata(&["--no-deps"])?;
    let crates = published(&metadata);
    if crates.is_empty() {
        return Err("`cargo metadata` names no crate that is published".to_owned());
    }
    Ok(crates)
}

fn published(metadata: &Value) -> Vec<Published> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish = false` is an empty list of registries.
    let packages =
        packages.filter(|package| package["publish"].as_array().is_none_or(|list| !list.is_empty()));
    packages.map(Published::of).collect()
}

impl Published {
    fn of(package: &Value) -> Self {
        let targets = package["targets"].as_array().into_iter().flatten();
        let kinds: Vec<String> = targets.flat_map(|target| strings(&target["kind"])).collect();
        let is_macro = kinds.iter().any(|kind| kind == "proc-macro");
        let features = package["features"].as_object().into_iter().flatten();
        let docs = &package["metadata"]["docs"]["rs"];
        Self {
            name: package["name"].as_str().unwrap_or_default().to_owned(),
            version: package["version"].as_str().unwrap_or_default().to_owned(),
            has_library: is_macro || kinds.iter().any(|kind| kind == "lib"),
            is_macro,
            features: features
                .map(|(name, _)| name.clone())
                .filter(|name| name != "default")
                .collect(),
            leaves_version_open: leaves_version_open(package),
            docs: Docs {
                features: strings(&docs["features"]),
                all_features: docs["all-features"].as_bool().unwrap_or(false),
            },
        }
    }

    /// Returns the values of `--features` for checks of the crate alone: none of its features, and each of them.
    pub(super) fn feature_sets(&self) -> Vec<String> {
        let open = self.leaves_version_open.then_some(VERSION_FEATURE);
        let none = open.unwrap_or_default().to_owned();
        let each = self.features.iter().map(|name| {
            let both = [Some(name.as_str()), open];
            both.into_iter().flatten().collect::<Vec<_>>().join(",")
        });
        std::iter::once(none).chain(each).collect()
    }

    /// Returns the arguments with which docs.rs builds the documentation.
    pub(super) fn docs_arguments(&self) -> Vec<String> {
        let all = self.docs.all_features.then(|| vec!["--all-features".to_owned()]);
        all.unwrap_or_else(|| vec!["--features".to_owned(), self.docs.features.join(",")])
    }
}

/// Reports whether the crate depends on `k8s-openapi` without a choice of its version.
fn leaves_version_open(package: &Value) -> bool {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    // Dev-dependencies have the kind `dev`; dependencies have none.
    let mut direct = dependencies.filter(|one| one["kind"].is_null() && one["name"] == "k8s-openapi");
    direct.any(|one| !strings(&one["features"]).iter().any(|name| chooses_version(name)))
}

fn chooses_version(feature: &str) -> bool {
    matches!(feature, "latest" | "earliest") || feature.starts_with("v1_")
}

fn strings(value: &Value) -> Vec<String> {
    let values = value.as_array().into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_checked_without_and_with_each_feature() {
        let package = serde_json::json!({
            "name": "a", "version": "1.0.0", "publish": null,
            "targets": [{"kind": ["lib"]}],
            "features": {"default": [], "one": [], "two": []},
            "dependencies": [
                {"name": "k8s-openapi", "kind": null, "features": ["schemars"]},
                {"name": "k8s-openapi", "kind": "dev", "features": ["latest"]},
            ],
            "metadata": {"docs": {"rs": {"features": ["k8s-openapi/latest"]}}},
        });
        let one = Published::of(&package);
        assert_eq!(
            one.feature_sets(),
            [
                "k8s-openapi/latest",
                "one,k8s-openapi/latest",
                "two,k8s-openapi/latest"
            ]
        );
        assert_eq!(one.docs_arguments(), ["--features", "k8s-openapi/latest"]);
        assert!(one.has_library && !one.is_macro);
    }

    #[test]
    fn an_unpublished_crate_is_left_out() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "publish": []}, {"name": "b", "publish": null}, {"name": "c", "publish": ["crates-io"]},
        ]});
        let names: Vec<String> = published(&metadata).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["b", "c"]);
    }

    // docs.rs builds one crate alone: without the choice its build fails, and with two choices as well.
    #[test]
    fn each_crate_chooses_the_version_of_its_types_once_for_docs_rs() {
        for one in read().unwrap() {
            let chosen = one
                .docs
                .features
                .iter()
                .filter(|name| *name == VERSION_FEATURE)
                .count();
            assert_eq!(chosen, usize::from(one.leaves_version_open), "{}", one.name);
        }
    }
}
