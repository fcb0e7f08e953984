// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: everything that must hold, or the tests alone.

use std::{
    env,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
};

use steersman_assets::{Assets, BuildError};

use crate::{
    Failure, kube, lint,
    step::{cargo, command, step, succeed, target},
};

/// What `steersman-testing` reads to find the shared server.
const SHARED_SERVER_VARIABLE: &str = "STEERSMAN_REAL_SERVER";

/// Files with tests whose size can be asked for, and those tests.
const LONG_FILES: [(&str, &str); 7] = [
    ("crates/steersman-cache", "faults"),
    ("crates/steersman-kit", "scale"),
    ("crates/steersman-runtime", "client_go"),
    ("crates/steersman-runtime", "conditional_memory"),
    ("crates/steersman-runtime", "failover"),
    ("crates/steersman-runtime", "soak"),
    ("examples", "two_clusters"),
];
const LONG_TESTS: [&str; 9] = [
    "an_hour_of_resyncs_and_status_changes",
    "three_controllers_update_one_status",
    "a_burst_of_changes_over_breaking_watches",
    "a_slow_list_of_many_objects",
    "replicas_in_go_and_rust_follow_each_other",
    "after_any_number_of_installs",
    "two_replicas_converge_after_any_faults",
    "that_is_away_for_a_while",
    "while_the_reference_is_away",
];

/// The sizes that requirements name. At every commit they are smaller, so that nobody waits for them.
const LONG_SIZES: [(&str, &str); 11] = [
    ("STEERSMAN_KIT_PARENTS", "1000"),
    ("STEERSMAN_KIT_ROUNDS", "1000"),
    ("STEERSMAN_BURST_ROUNDS", "50"),
    ("STEERSMAN_OBJECTS", "20000"),
    ("STEERSMAN_LIST_DELAY_SECONDS", "60"),
    ("STEERSMAN_CONTEND_SECONDS", "60"),
    ("STEERSMAN_AWAY_SECONDS", "60"),
    ("STEERSMAN_CYCLES", "500"),
    ("STEERSMAN_SOAK_SEEDS", "5"),
    ("STEERSMAN_SOAK_SECONDS", "20"),
    ("STEERSMAN_TEST_LIMIT_SECONDS", "7200"),
];

/// What to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Formatting, clippy, documentation and the model checker, before and after the tests.
    everything: bool,
    servers: Servers,
    /// The tests that have a size, at the size of the requirements, and no others.
    long: bool,
    filter: Option<String>,
}

impl Plan {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut plan = Self {
            everything: words.is_empty(),
            servers: Servers::BOTH,
            long: false,
            filter: None,
        };
        for word in words {
            match *word {
                "--embedded" => plan.servers.real = false,
                "--real" => plan.servers.embedded = false,
                "--long" => plan.long = true,
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "`cargo xtask test` has no option {flag}; it has --embedded, --real and --long"
                    ));
                }
                filter if plan.filter.is_none() => plan.filter = Some(filter.to_owned()),
                extra => return Err(format!("one filter at a time: `{extra}` is one too many")),
            }
        }
        plan.servers.check()?;
        if plan.long && plan.filter.is_some() {
            return Err("--long runs tests of its own: it takes no filter".to_owned());
        }
        Ok(plan)
    }

    /// The files that cargo is to run, or all.
    fn files(&self) -> Vec<&'static str> {
        let chosen = self.long.then_some(LONG_FILES).into_iter().flatten();
        chosen.flat_map(|(_, name)| ["--test", name]).collect()
    }

    /// Of that, the tests by name.
    fn names(&self) -> Vec<&str> {
        if self.long {
            // What they measure is their own: one at a time.
            return std::iter::once("--test-threads=1").chain(LONG_TESTS).collect();
        }
        self.filter.iter().map(String::as_str).collect()
    }
}

/// API servers that tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    pub(crate) embedded: bool,
    pub(crate) real: bool,
}

impl Servers {
    pub(crate) const BOTH: Self = Self {
        embedded: true,
        real: true,
    };

    /// At least one must be left.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.embedded || self.real {
            return Ok(());
        }
        Err("--embedded and --real exclude each other; without both, all tests run".to_owned())
    }

    /// What is skipped, by the names that `#[steersman_testing::test]` gives.
    pub(crate) fn skipped(self) -> Vec<&'static str> {
        let halves = [(self.embedded, "on_embedded"), (self.real, "on_real")];
        let unwanted = halves.into_iter().filter(|(wanted, _)| !wanted);
        unwanted.map(|(_, name)| name).collect()
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), Failure> {
    if plan.everything {
        lint::run()?;
    }
    with_real_server(plan.servers, |servers, variables| {
        step("tests", || {
            let mut tests = cargo();
            tests
                .args(["test", "--workspace", "--no-fail-fast"])
                .args(plan.files())
                .arg("--")
                .args(plan.names());
            tests.args(servers.skipped().iter().flat_map(|name| ["--skip", name]));
            tests.envs(variables);
            if plan.long {
                tests.envs(LONG_SIZES);
            }
            succeed(&mut tests)
        })
    })?;
    if plan.everything {
        step("interleavings, by loom", loom)
    } else {
        Ok(())
    }
}

/// Variables by which a test binary finds the real server.
pub(crate) type Variables = Vec<(&'static str, PathBuf)>;

/// Builds the tests, starts the real server if it is wanted and can be had, and runs this with what it makes of both.
pub(crate) fn with_real_server(
    mut servers: Servers,
    run: impl FnOnce(Servers, Variables) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let assets = if servers.real { real_server()? } else { None };
    servers.real = assets.is_some();
    // Not `--all-targets`: that makes tests of the examples, and one of them is the server that is started next.
    step("building tests", || {
        succeed(cargo().args(["test", "--workspace", "--no-run"]))
    })?;
    let Some(assets) = assets else {
        return run(servers, Vec::new());
    };
    let server = step("starting the real API server", || SharedServer::start(&assets))?;
    let variables = vec![
        (SHARED_SERVER_VARIABLE, server.file.clone()),
        (steersman_assets::ASSETS_VARIABLE, assets.dir().to_path_buf()),
    ];
    run(servers, variables)
}

/// All interleavings of the concurrent parts.
fn loom() -> Result<(), Failure> {
    loom_of_the_queue()?;
    loom_of_the_cache()
}

/// Code under `cfg(loom)` is other code, so it has its own directory.
fn loom_of_the_queue() -> Result<(), Failure> {
    let mut loom = cargo();
    loom.args([
        "test",
        "--release",
        "-p",
        "steersman-queue",
        "--test",
        "loom",
        "--target-dir",
        "target/loom",
    ]);
    succeed(loom.env("RUSTFLAGS", "--cfg loom"))
}

/// Here the flag is for one crate alone: the network side of tokio, which others need, is not there under `cfg(loom)`.
fn loom_of_the_cache() -> Result<(), Failure> {
    let mut build = cargo();
    build.args([
        "rustc",
        "-p",
        "steersman-cache",
        "--lib",
        "--profile",
        "test",
        "--message-format",
        "json-render-diagnostics",
        "--",
        "--cfg",
        "loom",
    ]);
    let output = build
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    let program = executable(&output.stdout);
    let program = program.ok_or("the interleavings of the cache could not be built")?;
    succeed(command(program).arg("interleavings"))
}

/// The program that cargo says it has built.
fn executable(messages: &[u8]) -> Option<String> {
    let messages = messages.split(|byte| *byte == b'\n');
    let mut programs = messages.filter_map(|line| {
        let message: serde_json::Value = serde_json::from_slice(line).ok()?;
        Some(message.get("executable")?.as_str()?.to_owned())
    });
    programs.next_back()
}

/// The real half: there, or left out with one clear line. On a build server it may not be left out.
fn real_server() -> Result<Option<Assets>, Failure> {
    match kube::find_or_build() {
        Ok(assets) => Ok(Some(assets)),
        Err(error @ BuildError::NoGo) if env::var_os("CI").is_none() => {
            eprintln!("tests on the real API server are left out: {error}");
            Ok(None)
        }
        Err(error) => Err(kube::describe(&error)),
    }
}

/// The server that all test binaries of this run share. It ends when its standard input does, so also when this
/// program is killed.
struct SharedServer {
    process: Child,
    file: PathBuf,
}

impl SharedServer {
    fn start(assets: &Assets) -> Result<Self, Failure> {
        // Built with the tests. `cargo run` would build it again, with the features of its own crate alone.
        let mut process = command(target().join("debug/examples/serve_real"))
            .arg("--shared")
            .env(steersman_assets::ASSETS_VARIABLE, assets.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the real API server cannot be run: {error}"))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        if line.trim().is_empty() {
            return Err("the real API server did not start; the reason stands above".to_owned());
        }
        Ok(Self {
            process,
            file: PathBuf::from(line.trim()),
        })
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_words_mean_everything() {
        let plan = Plan::parse(&[]).unwrap();
        assert!(plan.everything && plan.servers == Servers::BOTH);
    }

    #[test]
    fn one_half_skips_the_other() {
        assert_eq!(
            Plan::parse(&["--real", "watch"]).unwrap().servers.skipped(),
            ["on_embedded"]
        );
        assert_eq!(
            Plan::parse(&["--embedded"]).unwrap().servers.skipped(),
            ["on_real"]
        );
    }

    #[test]
    fn the_program_is_the_one_that_cargo_names() {
        let messages = br#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/target/debug/deps/x"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(executable(messages).as_deref(), Some("/target/debug/deps/x"));
        assert_eq!(executable(b"\n"), None);
    }

    #[test]
    fn long_ones_are_chosen_by_file_and_name() {
        let plan = Plan::parse(&["--long", "--embedded"]).unwrap();
        assert!(!plan.everything && !plan.servers.real);
        assert!(plan.files().ends_with(&["--test", "two_clusters"]));
        assert_eq!(plan.names()[0], "--test-threads=1");
        let plan = Plan::parse(&["watch"]).unwrap();
        assert_eq!((plan.files(), plan.names()), (Vec::new(), vec!["watch"]));
    }

    // A test that has another name now, or a size that nobody reads, would be left out without a word.
    #[test]
    fn all_that_is_said_to_be_long_is_there() {
        let mut text = String::new();
        for (folder, name) in LONG_FILES {
            let path = crate::root().join(folder).join(format!("tests/{name}.rs"));
            text += &std::fs::read_to_string(path).unwrap();
        }
        let harness = crate::root().join("crates/steersman-testing/src/harness.rs");
        text += &std::fs::read_to_string(harness).unwrap();
        let names = LONG_SIZES.iter().map(|(name, _)| name).chain(&LONG_TESTS);
        for name in names {
            assert!(text.contains(name), "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        Plan::parse(&["--long", "watch"]).unwrap_err();
        Plan::parse(&["--real", "--embedded"]).unwrap_err();
        Plan::parse(&["--quick"]).unwrap_err();
        Plan::parse(&["a", "b"]).unwrap_err();
    }
}
