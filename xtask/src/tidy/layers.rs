// SPDX-License-Identifier: Apache-2.0
//! Arrows between crates go one way.

use super::{Complaint, manifests::members, tree::Tree};

/// Each crate and those of ours that it may know. What a crate's tests use is their business.
const MAY_KNOW: [(&str, &[&str]); 14] = [
    ("steersman-core", &[]),
    ("steersman-queue", &["core"]),
    ("steersman-cache", &["core"]),
    ("steersman-cluster", &["core", "cache"]),
    ("steersman-controller", &["core", "queue", "cache", "cluster"]),
    ("steersman-webhook", &["core", "cluster"]),
    (
        "steersman-manager",
        &["core", "queue", "cache", "cluster", "controller", "webhook"],
    ),
    ("steersman-kit", &["core", "cache", "cluster", "controller"]),
    ("steersman-apiserver", &[]),
    ("steersman-assets", &[]),
    ("steersman-testing-macros", &[]),
    (
        "steersman-testing",
        &["core", "apiserver", "assets", "testing-macros"],
    ),
    (
        "steersman",
        &[
            "core",
            "queue",
            "cache",
            "cluster",
            "controller",
            "webhook",
            "manager",
            "kit",
        ],
    ),
    ("xtask", &["assets"]),
];

/// Programs at the end of all arrows.
const MAY_KNOW_ALL: [&str; 3] = ["steersman-cli", "steersman-examples", "bench-"];

pub(super) fn crates_depend_downwards(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for package in members(tree) {
        if MAY_KNOW_ALL.iter().any(|name| package.name.starts_with(name)) {
            continue;
        }
        let Some((_, known)) = MAY_KNOW.iter().find(|(name, _)| *name == package.name) else {
            complaints.push(format!(
                "{}: say in xtask/src/tidy/layers.rs which crates `{}` may know",
                package.path, package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(short) = dependency.strip_prefix("steersman-") else {
                continue;
            };
            if !known.contains(&short) {
                complaints.push(format!(
                    "{}: `{}` must not know `{dependency}`",
                    package.path, package.name
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_upwards_is_found() {
        let manifest = "[package]\nname = \"steersman-queue\"\n[dependencies]\nsteersman-core.workspace = true\nsteersman-cache.workspace = true\n";
        let tree = Tree::of(&[("crates/steersman-queue/Cargo.toml", manifest)]);
        let complaints = crates_depend_downwards(&tree);
        assert_eq!(complaints.len(), 1);
        assert!(
            complaints[0].contains("must not know `steersman-cache`"),
            "{complaints:?}"
        );
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        let tree = Tree::of(&[(
            "crates/steersman-new/Cargo.toml",
            "[package]\nname = \"steersman-new\"\n",
        )]);
        assert_eq!(crates_depend_downwards(&tree).len(), 1);
    }
}
