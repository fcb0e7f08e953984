// SPDX-License-Identifier: Apache-2.0
//! Arrows between crates go one way.

use super::{
    Complaint,
    manifests::{Package, members},
    tree::Tree,
};

/// Each crate and those of ours that it may know. What a crate's tests use is their business.
const MAY_KNOW: [(&str, &[&str]); 15] = [
    ("steersman-core", &[]),
    ("steersman-queue", &["core"]),
    ("steersman-cache", &["core"]),
    ("steersman-cluster", &["core", "cache"]),
    ("steersman-controller", &["core", "queue", "cache", "cluster"]),
    ("steersman-endpoints", &["core"]),
    ("steersman-webhook", &["core", "cluster", "endpoints"]),
    (
        "steersman-manager",
        &[
            "core",
            "queue",
            "cache",
            "cluster",
            "controller",
            "endpoints",
            "webhook",
        ],
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
            "endpoints",
            "webhook",
            "manager",
            "kit",
        ],
    ),
    ("xtask", &["assets"]),
];

/// Crates that know neither Kubernetes nor HTTP nor a runtime, unless somebody asks for it by a feature; and by what
/// names of packages, or first words of them, these would come in.
const PURE: [&str; 2] = ["steersman-core", "steersman-queue"];
const IMPURE: [&str; 6] = ["kube", "k8s-openapi", "http", "hyper", "tower", "tokio"];

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
        let unknown = not_among(&package, known).into_iter().chain(impure(&package));
        complaints.extend(
            unknown.map(|name| format!("{}: `{}` must not know `{name}`", package.path, package.name)),
        );
    }
    complaints
}

/// What it knows of ours and may not. The façade is above all.
fn not_among<'a>(package: &'a Package, known: &[&str]) -> Vec<&'a str> {
    let names = package.dependencies.iter().map(|dependency| &*dependency.name);
    let ours = names.filter(|name| *name == "steersman" || name.starts_with("steersman-"));
    ours.filter(|name| {
        !known
            .iter()
            .any(|short| name.strip_prefix("steersman-") == Some(short))
    })
    .collect()
}

fn impure(package: &Package) -> Vec<&str> {
    if !PURE.contains(&&*package.name) {
        return Vec::new();
    }
    let is_of = |name: &str, word: &str| {
        name.strip_prefix(word)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let always = package
        .dependencies
        .iter()
        .filter(|dependency| !dependency.is_optional);
    always
        .map(|dependency| &*dependency.name)
        .filter(|name| IMPURE.iter().any(|word| is_of(name, word)))
        .collect()
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

    fn complaints_about(name: &str, rest: &str) -> Vec<Complaint> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}");
        let path = format!("crates/{name}/Cargo.toml");
        crates_depend_downwards(&Tree::of(&[(&path, &manifest)]))
    }

    #[test]
    fn an_arrow_to_the_facade_or_behind_a_target_is_found() {
        for rest in [
            "[dependencies]\nsteersman.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nsteersman-queue.workspace = true\n",
            "[build-dependencies]\nsteersman-core = { path = \"../steersman-core\" }\n",
            "[dependencies]\ncore = { package = \"steersman-core\", optional = true }\n",
        ] {
            assert_eq!(complaints_about("steersman-apiserver", rest).len(), 1, "{rest}");
        }
    }

    #[test]
    fn a_runtime_in_the_core_is_found_unless_it_is_asked_for() {
        let core = |rest: &str| complaints_about("steersman-core", rest).len();
        assert_eq!(
            core("[dependencies]\ntokio = { workspace = true, optional = true }\n"),
            0
        );
        assert_eq!(core("[dependencies]\ntokio.workspace = true\n"), 1);
        assert_eq!(
            core("[dependencies]\nkube-core.workspace = true\nhttpdate = \"1\"\n"),
            1
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
