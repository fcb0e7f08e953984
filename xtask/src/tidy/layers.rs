// SPDX-License-Identifier: Apache-2.0
//! Crates depend only on lower layers.

use super::{
    Complaint,
    manifests::{Package, members},
    tree::Tree,
};

/// Each crate with the crates of this workspace that it is allowed to depend on. Dev-dependencies are not checked.
const MAY_KNOW: [(&str, &[&str]); 16] = [
    ("steersman-core", &[]),
    ("steersman-queue", &["core"]),
    ("steersman-cache", &["core"]),
    ("steersman-cluster", &["core", "cache"]),
    ("steersman-endpoints", &["core"]),
    (
        "steersman-runtime",
        &["core", "queue", "cache", "cluster", "endpoints"],
    ),
    ("steersman-kit-derive", &[]),
    (
        "steersman-kit",
        &["core", "cache", "cluster", "endpoints", "runtime", "kit-derive"],
    ),
    (
        "steersman-webhook",
        &["core", "cache", "cluster", "endpoints", "runtime", "kit"],
    ),
    ("steersman-manifests", &["core"]),
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
            "endpoints",
            "runtime",
            "kit",
            "manifests",
            "webhook",
        ],
    ),
    ("xtask", &["assets"]),
];

/// Crates without mandatory dependencies on Kubernetes, HTTP or a runtime, and the prefixes of the packages that would
/// add one.
const PURE: [&str; 2] = ["steersman-core", "steersman-queue"];
const IMPURE: [&str; 6] = ["kube", "k8s-openapi", "http", "hyper", "tower", "tokio"];

/// Programs on which no crate depends.
const MAY_KNOW_ALL: [&str; 4] = ["steersman-cli", "steersman-demo", "steersman-examples", "bench-"];

pub(super) fn crates_depend_downwards(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for package in members(tree) {
        if MAY_KNOW_ALL.iter().any(|name| package.name.starts_with(name)) {
            continue;
        }
        let Some((_, known)) = MAY_KNOW.iter().find(|(name, _)| *name == package.name) else {
            complaints.push(format!(
                "{}: list the permitted dependencies of `{}` in xtask/src/tidy/layers.rs",
                package.path, package.name
            ));
            continue;
        };
        let unknown = not_among(&package, known).into_iter().chain(impure(&package));
        complaints.extend(
            unknown.map(|name| format!("{}: `{}` must not depend on `{name}`", package.path, package.name)),
        );
    }
    complaints
}

/// Checks that every crate in the list of layers exists.
pub(super) fn layers_are_those_of_the_tree(tree: &Tree) -> Vec<Complaint> {
    let members = members(tree);
    let is_missing = |name: &&str| members.iter().all(|package| package.name != **name);
    let missing = MAY_KNOW
        .iter()
        .map(|(name, _)| name)
        .filter(|name| is_missing(name));
    missing
        .map(|name| format!("xtask/src/tidy/layers.rs: there is no crate `{name}`"))
        .collect()
}

/// Checks for cycles that prevent publishing: a crate whose tests need a published version of a crate that depends on it.
/// A dependency with `path` alone is not part of the published manifest.
pub(super) fn no_cycle_stops_publishing(tree: &Tree) -> Vec<Complaint> {
    let members = members(tree);
    let mut complaints = Vec::new();
    for package in &members {
        for tested_with in package.test_dependencies.iter().filter(|one| one.is_published) {
            if depends_on(&members, &tested_with.name, &package.name) {
                complaints.push(format!(
                    "{}: `{}` depends on this crate: name it by `path` alone, or neither can be published",
                    package.path, tested_with.name
                ));
            }
        }
    }
    complaints
}

fn depends_on(members: &[Package], name: &str, on: &str) -> bool {
    let package = members.iter().find(|package| package.name == name);
    let mut dependencies = package.iter().flat_map(|package| &package.dependencies);
    dependencies.any(|dependency| dependency.name == on || depends_on(members, &dependency.name, on))
}

/// Returns dependencies that are not permitted. The crate `steersman` is the top layer.
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
    fn rejects_a_dependency_on_a_higher_layer() {
        let manifest = "[package]\nname = \"steersman-queue\"\n[dependencies]\nsteersman-core.workspace = true\nsteersman-cache.workspace = true\n";
        let tree = Tree::of(&[("crates/steersman-queue/Cargo.toml", manifest)]);
        let complaints = crates_depend_downwards(&tree);
        assert_eq!(complaints.len(), 1);
        assert!(
            complaints[0].contains("must not depend on `steersman-cache`"),
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
    fn rejects_a_mandatory_runtime_in_core() {
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
    fn rejects_a_dev_dependency_cycle_with_a_version() {
        let complaints = |line: &str| {
            let manifest = format!("[package]\nname = \"a\"\n[dev-dependencies]\n{line}\n");
            let tree = Tree::of(&[
                ("crates/a/Cargo.toml", &manifest),
                (
                    "crates/b/Cargo.toml",
                    "[package]\nname = \"b\"\n[dependencies]\nc = \"1\"\n",
                ),
                (
                    "crates/c/Cargo.toml",
                    "[package]\nname = \"c\"\n[dependencies]\na.workspace = true\n",
                ),
            ]);
            no_cycle_stops_publishing(&tree).len()
        };
        assert_eq!(complaints("b.workspace = true"), 1);
        assert_eq!(complaints("b = { path = \"../b\", version = \"1\" }"), 1);
        assert_eq!(complaints("b = { path = \"../b\" }"), 0);
        assert_eq!(complaints("d.workspace = true"), 0);
    }

    #[test]
    fn rejects_a_crate_without_a_layer() {
        let tree = Tree::of(&[(
            "crates/steersman-new/Cargo.toml",
            "[package]\nname = \"steersman-new\"\n",
        )]);
        assert_eq!(crates_depend_downwards(&tree).len(), 1);
    }
}
