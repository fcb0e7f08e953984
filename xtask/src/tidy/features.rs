// SPDX-License-Identifier: Apache-2.0
//! Features that a user's tests build the framework with: the same as those that the user's program does.
//!
//! Cargo builds a crate again if its features differ, and with it every crate that depends on it. `steersman-testing` therefore must
//! not ask for a feature of a shared dependency that `steersman` does not ask for.

#![cfg(test)]

use std::collections::BTreeMap;

use crate::step::cargo;

/// Each package that is built for these packages of ours, with its features.
fn features(packages: &[&str]) -> BTreeMap<String, String> {
    let mut tree = cargo();
    tree.args(["tree", "--offline", "--edges", "no-dev", "--prefix", "none"]);
    tree.args(["--no-dedupe", "--format", "{p}\t{f}"]);
    tree.args(packages.iter().flat_map(|name| ["--package", name]));
    let output = tree.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    let without_runtime = |features: &str| {
        // Users ask for this one themselves, as the manual's first page says.
        let features = features.split(',').filter(|name| *name != "rt-multi-thread");
        features.collect::<Vec<_>>().join(",")
    };
    lines
        .map(|(package, features)| (package.to_owned(), without_runtime(features)))
        .collect()
}

// D27
#[test]
fn tests_of_users_do_not_build_the_framework_again() {
    let program = features(&["steersman"]);
    let tests = features(&["steersman", "steersman-testing"]);
    assert!(program.len() > 50, "{program:?}");
    let differing: Vec<String> = program
        .iter()
        .filter(|(package, features)| tests.get(*package) != Some(features))
        .map(|(package, features)| format!("{package}: {features:?}, in tests {:?}", tests.get(package)))
        .collect();
    assert!(
        differing.is_empty(),
        "name these features in the workspace manifest, so that both builds have them:\n{}",
        differing.join("\n")
    );
}
