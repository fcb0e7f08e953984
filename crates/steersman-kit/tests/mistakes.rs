// SPDX-License-Identifier: Apache-2.0
//! Usual mistakes do not compile, and the first error says what to do.
//!
//! Each mistake is one change of `mistakes/correct.rs`. The text of an error is ours, from `#[diagnostic::on_unimplemented]` or
//! from a derive macro; only that is compared, so that the tests hold for every version of the compiler.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(unused, reason = "mistakes need more names than the correct program")]
#[path = "mistakes/correct.rs"]
mod correct;

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::Value;

const CORRECT: &str = include_str!("mistakes/correct.rs");
const DEPENDENCIES: &[&str] = &steersman_testing::rustc_dependencies!();

/// A change of the correct program, and texts that the first error must have.
struct Mistake {
    name: &'static str,
    from: &'static str,
    to: &'static str,
    says: &'static [&'static str],
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "undeclared_child_kind",
        from: "child(Cond::Available, deployment(memcached))",
        to: "child(Cond::Available, ConfigMap::default())",
        says: &[
            "`ConfigMap` is not declared as a child of this reconciler",
            "add `ConfigMap` to `type Children`",
        ],
    },
    Mistake {
        name: "undeclared_child_kind_among_two",
        from: "child(Cond::Available, deployment(memcached))",
        to: "child(Cond::Available, Pod::default())",
        says: &["`Pod` is not declared as a child of this reconciler"],
    },
    Mistake {
        name: "child_kind_without_a_comma",
        from: "type Children = (Deployment, Optional<Service>);",
        to: "type Children = (Deployment);",
        says: &["`Deployment` is not a list of child kinds", "`(Deployment,)`"],
    },
    Mistake {
        name: "child_that_is_not_a_kind",
        from: "type Children = (Deployment, Optional<Service>);",
        to: "type Children = (Deployment, String);",
        says: &["String` cannot be a child kind"],
    },
    Mistake {
        name: "missing_cleanup",
        from: "type Finalizer = NoCleanup;",
        to: "type Finalizer = RunsCleanup;",
        says: &[
            "`Memcacheds` has `type Finalizer = RunsCleanup`, but no cleanup",
            "add `impl Cleanup for Memcacheds`, or set `type Finalizer = NoCleanup`",
        ],
    },
    Mistake {
        name: "apply_set_without_a_finalizer",
        from: "work.child(Cond::Available, deployment(memcached)).await;",
        to: "work.apply_set(Cond::Available, &steersman_kit::ApplySet::new()).await;",
        says: &[
            "members of an apply set of `Memcacheds` could outlive their parent",
            "set `type Finalizer = DeletesApplySet`, and implement `ApplySetParent`",
        ],
    },
    Mistake {
        name: "apply_set_without_the_name_of_a_finalizer",
        from: "type Finalizer = NoCleanup;",
        to: "type Finalizer = steersman_kit::DeletesApplySet;",
        says: &["`Memcacheds` has `type Finalizer = DeletesApplySet`, but names no finalizer"],
    },
    Mistake {
        name: "wrong_condition_enum",
        from: "child(Cond::Available,",
        to: "child(Other::Shiny,",
        says: &["expected `Cond`, found `Other`"],
    },
    Mistake {
        name: "forgotten_namespaced",
        from: "namespaced,",
        to: "",
        says: &[
            "the child and its parent are not of one scope",
            "is `namespaced` missing in the `#[kube(…)]` of the parent?",
        ],
    },
    Mistake {
        name: "kind_without_a_status",
        from: "    status = \"MemcachedStatus\"\n",
        to: "",
        says: &[
            "`MemcachedStatus` cannot be the status of a `Memcached`",
            "`status = \"…\"` to the `#[kube(…)]` of `Memcached`",
        ],
    },
    Mistake {
        name: "status_without_derive",
        from: "#[derive(Status, Clone,",
        to: "#[derive(Clone,",
        says: &[
            "`MemcachedStatus` cannot be the status of a `Memcached`",
            "add `#[derive(Status)]` to `MemcachedStatus`",
        ],
    },
    Mistake {
        name: "status_without_conditions",
        from: "    conditions: Conditions<Cond>,\n",
        to: "",
        says: &["a status needs conditions: add the field `pub conditions: Conditions<C>`"],
    },
    Mistake {
        name: "status_with_a_vec_of_conditions",
        from: "conditions: Conditions<Cond>",
        to: "conditions: Vec<String>",
        says: &["write `Conditions<C>` instead of `Vec<…>`"],
    },
    Mistake {
        name: "status_with_another_type_of_conditions",
        from: "conditions: Conditions<Cond>",
        to: "conditions: String",
        says: &["the field `conditions` of a status is a `Conditions<C>`, not"],
    },
    Mistake {
        name: "conditions_of_a_plain_enum",
        from: "#[derive(ConditionSet, Clone, Copy, Debug)]\nenum Cond",
        to: "#[derive(Clone, Copy, Debug)]\nenum Cond",
        says: &[
            "`Cond` is not a set of conditions",
            "add `#[derive(ConditionSet, Clone, Copy)]` to `Cond`",
        ],
    },
    Mistake {
        name: "observed_generation_that_is_always_set",
        from: "observed_generation: Option<i64>",
        to: "observed_generation: i64",
        says: &["write `Option<i64>`: it is `None` until a generation was reconciled"],
    },
    Mistake {
        name: "status_without_serde_default",
        from: "#[serde(rename_all = \"camelCase\", default)]",
        to: "#[serde(rename_all = \"camelCase\")]",
        says: &["a status needs defaults: add `#[serde(rename_all = \"camelCase\", default)]`"],
    },
    Mistake {
        name: "status_in_snake_case",
        from: "#[serde(rename_all = \"camelCase\", default)]",
        to: "#[serde(default)]",
        says: &["clients read `status.observedGeneration`"],
    },
    Mistake {
        name: "condition_with_the_name_of_the_summary",
        from: "    Registered,",
        to: "    Ready,",
        says: &["`Ready` is the summary, which is computed from the other conditions: remove this variant"],
    },
    Mistake {
        name: "condition_with_a_name_that_the_server_rejects",
        from: "    Registered,",
        to: "    #[condition(name = \"not registered\")]\n    Registered,",
        says: &["write a name such as `Available` or `example.com/Available`"],
    },
    Mistake {
        name: "unknown_attribute_of_a_condition",
        from: "    Registered,",
        to: "    #[condition(optional)]\n    Registered,",
        says: &["`#[condition(…)]` takes `informational`, `negative` and `name = \"…\"`"],
    },
];

/// Compiles a program as far as its types.
fn compile(directory: &Path, name: &str, program: &str) -> Output {
    let file = directory.join(format!("{name}.rs"));
    fs::write(&file, program).unwrap();
    Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args([
            "--edition=2024",
            "--crate-type=bin",
            "--emit=metadata",
            "--error-format=json",
            "--cap-lints=allow",
        ])
        .args(DEPENDENCIES)
        .arg("--out-dir")
        .arg(directory)
        .arg(file)
        .output()
        .unwrap()
}

/// Returns the errors, as the compiler prints them.
fn errors(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let diagnostics = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    diagnostics
        .filter(|diagnostic| diagnostic["level"] == "error")
        .filter_map(|diagnostic| diagnostic["rendered"].as_str().map(str::to_owned))
        .collect()
}

fn check(directory: &Path, mistake: &Mistake) -> Result<(), String> {
    let Mistake { name, from, to, says } = mistake;
    if CORRECT.matches(from).count() != 1 {
        return Err(format!("{name}: `{from}` is not exactly once in correct.rs"));
    }
    let output = compile(directory, name, &CORRECT.replace(from, to));
    let errors = errors(&output);
    let Some(first) = errors.first() else {
        return Err(format!("{name}: compiles"));
    };
    match says.iter().find(|text| !first.contains(**text)) {
        Some(missing) => Err(format!(
            "{name}: the first error does not say: {missing}\n{}",
            errors.join("\n")
        )),
        None => Ok(()),
    }
}

#[test]
fn the_correct_program_compiles() {
    let directory = tempfile::tempdir().unwrap();
    let output = compile(directory.path(), "correct", CORRECT);
    assert!(output.status.success(), "{}", errors(&output).join("\n"));
}

#[test]
fn the_first_error_of_a_mistake_names_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mistake) = MISTAKES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = check(directory.path(), mistake) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
