// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask release-check`: the checks of a release that `cargo xtask test` does not make.
//!
//! A check that needs a tool or a toolchain is skipped where that is missing, and the end of the output names it. With
//! `--hosted`, as in the workflows that install the tools, a missing tool is an error. To run without a network, set
//! `CARGO_NET_OFFLINE=true`.

mod dependencies;
mod licenses;
mod published;
mod toolchain;

use std::{fs, process::Command};

use crate::{
    Failure,
    step::{cargo, command, step, succeed, target},
};
use toolchain::Toolchain;

/// Maximum size of a package on crates.io, in bytes.
const LARGEST_PACKAGE: u64 = 10 << 20;

/// Options of the command.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Checks to run. Empty: all.
    names: Vec<&'static str>,
    /// Do not build the packages from their packaged sources.
    no_verify: bool,
    /// Every tool is required, and the network is available.
    hosted: bool,
}

/// Result of a check that did not fail.
enum Outcome {
    Passed,
    /// A tool or a precondition is missing.
    Skipped(String),
}

/// A check, and the name by which the command line selects it.
struct Check {
    name: &'static str,
    run: fn(&Plan) -> Result<Outcome, Failure>,
}

/// In the order in which they run: quick ones first.
const CHECKS: [Check; 7] = [
    Check {
        name: "dependencies",
        run: |_| dependencies::check().map(|()| Outcome::Passed),
    },
    Check {
        name: "deny",
        run: deny,
    },
    Check {
        name: "package",
        run: package,
    },
    Check {
        name: "features",
        run: features,
    },
    Check {
        name: "docs",
        run: docs,
    },
    Check {
        name: "msrv",
        run: msrv,
    },
    Check {
        name: "semver",
        run: semver,
    },
];

impl Plan {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut plan = Self {
            names: Vec::new(),
            no_verify: false,
            hosted: false,
        };
        for word in words {
            match *word {
                "--no-verify" => plan.no_verify = true,
                "--hosted" => plan.hosted = true,
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "`cargo xtask release-check` has no option {flag}; it has --no-verify and --hosted"
                    ));
                }
                name => {
                    let known = CHECKS.iter().find(|check| check.name == name);
                    let known =
                        known.ok_or_else(|| format!("unknown check `{name}`; checks: {}", names()))?;
                    plan.names.push(known.name);
                }
            }
        }
        Ok(plan)
    }
}

fn names() -> String {
    CHECKS.map(|check| check.name).join(", ")
}

pub(crate) fn run(plan: &Plan) -> Result<(), Failure> {
    let is_chosen = |check: &&Check| plan.names.is_empty() || plan.names.contains(&check.name);
    let mut skipped = Vec::new();
    for check in CHECKS.iter().filter(is_chosen) {
        if let Outcome::Skipped(reason) = step(check.name, || (check.run)(plan))? {
            eprintln!("    skipped: {reason}");
            skipped.push(format!("{}: {reason}", check.name));
        }
    }
    if !skipped.is_empty() {
        eprintln!("checks that did not run:\n  {}", skipped.join("\n  "));
    }
    Ok(())
}

/// Skips a check, or fails where every tool is required.
fn missing(plan: &Plan, what: &str, remedy: &str) -> Result<Outcome, Failure> {
    let reason = format!("{what} is not installed; {remedy}");
    if plan.hosted {
        return Err(reason);
    }
    Ok(Outcome::Skipped(reason))
}

/// Reports whether cargo has a subcommand, such as `deny`.
fn has_subcommand(name: &str) -> bool {
    let output = cargo().args([name, "--version"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Packages every crate that is published, builds the packages, and checks their sizes.
fn package(plan: &Plan) -> Result<Outcome, Failure> {
    let crates = published::read()?;
    let mut package = cargo();
    package.args(["package", "--allow-dirty", "--quiet"]);
    package.args(plan.no_verify.then_some("--no-verify"));
    package.args(crates.iter().flat_map(|one| ["--package", &one.name]));
    // A package is built alone, and no program chooses this for it.
    package.env(dependencies::VERSION_VARIABLE, dependencies::latest_kubernetes()?);
    succeed(&mut package)?;
    for one in &crates {
        let path = target().join(format!("package/{}-{}.crate", one.name, one.version));
        let size = fs::metadata(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        eprintln!("    {:<28} {:>5} KiB", one.name, size.len() >> 10);
        if size.len() > LARGEST_PACKAGE {
            return Err(format!("{} is larger than crates.io accepts", path.display()));
        }
    }
    Ok(Outcome::Passed)
}

/// Checks each crate alone, without features and with each of its features: a build of the whole workspace hides a feature
/// that a crate needs and does not ask for.
fn features(_: &Plan) -> Result<Outcome, Failure> {
    for one in published::read()? {
        for features in one.feature_sets() {
            let mut check = cargo();
            check.args([
                "check",
                "--quiet",
                "--package",
                &one.name,
                "--no-default-features",
            ]);
            check.args(["--features", &features]);
            succeed(&mut check)?;
        }
    }
    Ok(Outcome::Passed)
}

/// Builds the documentation of each crate as docs.rs does: with a nightly toolchain, alone, and with the features of its
/// metadata.
fn docs(plan: &Plan) -> Result<Outcome, Failure> {
    let Some(nightly) = Toolchain::find("nightly") else {
        return missing(
            plan,
            "the toolchain `nightly`",
            "run `rustup toolchain install nightly`",
        );
    };
    for one in published::read()?.iter().filter(|one| one.has_library) {
        let mut doc = nightly.cargo();
        doc.args(["doc", "--quiet", "--no-deps", "--package", &one.name]);
        doc.args(one.docs_arguments());
        doc.args(["--target-dir", "target/docs-rs"]);
        succeed(doc.env("RUSTDOCFLAGS", "--cfg docsrs -D warnings"))?;
    }
    Ok(Outcome::Passed)
}

/// Checks the workspace with the toolchain that `rust-version` names.
fn msrv(plan: &Plan) -> Result<Outcome, Failure> {
    let version = dependencies::rust_version()?;
    let Some(toolchain) = Toolchain::find(&version) else {
        let remedy = format!("run `rustup toolchain install {version}`");
        return missing(plan, &format!("the toolchain {version}"), &remedy);
    };
    let mut check = toolchain.cargo();
    check.args([
        "check",
        "--quiet",
        "--workspace",
        "--locked",
        "--target-dir",
        "target/msrv",
    ]);
    succeed(&mut check)?;
    Ok(Outcome::Passed)
}

/// Licences, bans and sources; advisories only where the network is available.
fn deny(plan: &Plan) -> Result<Outcome, Failure> {
    if !has_subcommand("deny") {
        return missing(plan, "cargo-deny", "run `cargo install --locked cargo-deny`");
    }
    let mut deny = cargo();
    deny.args(["deny", "check", "bans", "licenses", "sources"]);
    deny.args(plan.hosted.then_some("advisories"));
    succeed(&mut deny)?;
    Ok(Outcome::Passed)
}

/// Compares the public API with the last release.
fn semver(plan: &Plan) -> Result<Outcome, Failure> {
    let Some(tag) = last_release() else {
        return Ok(Outcome::Skipped(
            "there is no tag `v…` to compare with".to_owned(),
        ));
    };
    if !has_subcommand("semver-checks") {
        return missing(
            plan,
            "cargo-semver-checks",
            "run `cargo install --locked cargo-semver-checks`",
        );
    }
    let libraries = published::read()?;
    let libraries = libraries.iter().filter(|one| one.has_library && !one.is_macro);
    let mut check = cargo();
    check.args(["semver-checks", "--baseline-rev", &tag]);
    check.env(dependencies::VERSION_VARIABLE, dependencies::latest_kubernetes()?);
    check.args(libraries.flat_map(|one| ["--package", &*one.name]));
    succeed(&mut check)?;
    Ok(Outcome::Passed)
}

/// Returns the tag of the last release before this commit.
fn last_release() -> Option<String> {
    let mut git = command("git");
    git.args(["describe", "--tags", "--match", "v*", "--abbrev=0", "HEAD^"]);
    output(&mut git)
}

/// Returns the output of a command that succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_checks_by_name() {
        let plan = Plan::parse(&["msrv", "--hosted"]).unwrap();
        assert_eq!(
            (plan.names, plan.hosted, plan.no_verify),
            (vec!["msrv"], true, false)
        );
        assert!(Plan::parse(&[]).unwrap().names.is_empty());
        let failure = Plan::parse(&["licence"]).unwrap_err();
        assert!(failure.contains("dependencies, deny, package"), "{failure}");
        Plan::parse(&["--offline"]).unwrap_err();
    }

    #[test]
    fn a_missing_tool_is_an_error_only_in_hosted_workflows() {
        let outcome = missing(&Plan::parse(&[]).unwrap(), "cargo-deny", "install it");
        assert!(matches!(outcome, Ok(Outcome::Skipped(reason)) if reason.contains("cargo-deny")));
        assert!(missing(&Plan::parse(&["--hosted"]).unwrap(), "cargo-deny", "install it").is_err());
    }

    fn workflows() -> Vec<String> {
        let dir = crate::root().join(".github/workflows");
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn workflows_limit_their_permissions_and_their_time() {
        for text in workflows() {
            let workflow: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(
                workflow["permissions"],
                serde_json::json!({"contents": "read"}),
                "{text}"
            );
            for (name, job) in workflow["jobs"].as_object().unwrap() {
                assert!(job["timeout-minutes"].is_u64(), "{name}");
                assert!(job["runs-on"].is_string(), "{name}");
            }
        }
    }

    // A check that no workflow runs is not made before a release.
    #[test]
    fn workflows_run_every_check() {
        let text = workflows().concat();
        let commands: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_once("cargo xtask release-check"))
            .map(|(_, rest)| rest)
            .collect();
        for check in CHECKS {
            let is_run = |words: &&str| words.split_whitespace().any(|word| word == check.name);
            assert!(commands.iter().any(is_run), "no workflow runs `{}`", check.name);
        }
    }
}
