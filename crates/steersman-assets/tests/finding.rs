// SPDX-License-Identifier: Apache-2.0
//! The search for binaries, and the errors if they are missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, os::unix::fs::symlink, path::Path};

use steersman_assets::{Environment, Progress, find_in, find_or_build_in};

fn binaries(dir: &Path, names: &[&str]) {
    fs::create_dir_all(dir).unwrap();
    for name in names {
        fs::write(dir.join(name), "").unwrap();
    }
}

fn fake_go(dir: &Path) -> Environment {
    let go = dir.join("go");
    // A link: a program that was just written may still be open for writing in a neighbour's fork, and not run.
    symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/go"), &go).unwrap();
    Environment::empty().with_cache(dir.join("cache")).with_go(go)
}

#[test]
fn guarantee_1_the_variable_takes_precedence() {
    let dir = tempfile::tempdir().unwrap();
    binaries(dir.path(), &["kube-apiserver", "etcd"]);
    let assets = find_in(
        &Environment::empty()
            .with_assets(dir.path())
            .with_cache("/nowhere"),
    )
    .unwrap();
    assert_eq!(assets.kube_apiserver(), dir.path().join("kube-apiserver"));
    assert_eq!(
        assets.kube_controller_manager(),
        None,
        "envtest's archives have none"
    );
}

#[test]
fn guarantee_1_an_invalid_variable_is_an_error_of_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    binaries(dir.path(), &["kube-apiserver"]);
    let error = find_in(&Environment::empty().with_assets(dir.path()))
        .unwrap_err()
        .to_string();
    let expected = format!(
        "KUBEBUILDER_ASSETS is {}, which has no etcd: ",
        dir.path().display()
    );
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_missing_build_is_an_error_with_advice() {
    let error = find_in(&Environment::empty().with_cache("/nowhere"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("run `cargo xtask kube`"), "{error}");
}

#[test]
fn guarantee_2_an_interrupted_build_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let environment = fake_go(dir.path());
    fs::write(dir.path().join("fail"), "signal: killed").unwrap();
    let error = find_or_build_in(&environment, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`go build` failed: signal: killed");
    find_in(&environment).unwrap_err();
}

#[test]
fn guarantee_3_resumes_an_interrupted_build_and_reuses_a_finished_one() {
    let dir = tempfile::tempdir().unwrap();
    let environment = fake_go(dir.path());
    fs::write(dir.path().join("fail"), "signal: killed").unwrap();
    find_or_build_in(&environment, &mut |_| {}).unwrap_err();
    fs::remove_file(dir.path().join("fail")).unwrap();

    let mut steps = Vec::new();
    let built = find_or_build_in(&environment, &mut |step| steps.push(step)).unwrap();
    assert_eq!(steps.last(), Some(&Progress::Finished));
    assert!(
        steps.contains(&Progress::Compiling {
            module: "kube",
            done: 1,
            of: 2
        }),
        "{steps:?}"
    );
    assert!(built.kubectl().is_some());

    let mut steps = 0;
    assert_eq!(
        find_or_build_in(&environment, &mut |_| steps += 1).unwrap(),
        built
    );
    assert_eq!(steps, 0);
}

#[test]
fn a_full_disk_is_an_error_of_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let environment = fake_go(dir.path());
    fs::write(dir.path().join("fail"), "link: write: no space left on device").unwrap();
    let error = find_or_build_in(&environment, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the disk is full: building kube-apiserver needs about 6 GB in "),
        "{error}"
    );
}

#[test]
fn a_missing_go_toolchain_is_an_error_of_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let environment = Environment::empty().with_cache(dir.path()).with_go("/nowhere/go");
    let error = find_or_build_in(&environment, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("building kube-apiserver needs Go 1.26 or later, and no `go` is on the PATH"),
        "{error}"
    );
}
