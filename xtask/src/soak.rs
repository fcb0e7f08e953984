// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask soak`: runs two replicas of an operator under random faults, for a range of seeds.

use crate::{
    Failure,
    step::{cargo, step, succeed},
    test::{self, Servers},
};

/// Time limit of one seed on a busy machine, from which the limit of the test is computed.
const SECONDS_PER_SEED: u64 = 240;

/// Options of the command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    seeds: u64,
    first: u64,
    servers: Servers,
}

impl Plan {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut plan = Self {
            seeds: 10,
            first: 1,
            servers: Servers::BOTH,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--seeds" => plan.seeds = number(word, words.next())?,
                "--seed" => plan.first = number(word, words.next())?,
                "--embedded" => plan.servers.real = false,
                "--real" => plan.servers.embedded = false,
                other => {
                    return Err(format!(
                        "`cargo xtask soak` has no option {other}; it has --seeds, --seed, --embedded and --real"
                    ));
                }
            }
        }
        plan.servers.check()?;
        Ok(plan)
    }

    /// Returns the environment of the test.
    fn variables(&self) -> [(&'static str, String); 4] {
        let limit = self.seeds.saturating_mul(SECONDS_PER_SEED);
        [
            ("STEERSMAN_SOAK_SEEDS", self.seeds.to_string()),
            ("STEERSMAN_SOAK_SEED", self.first.to_string()),
            ("STEERSMAN_SOAK_SECONDS", "20".to_owned()),
            ("STEERSMAN_TEST_LIMIT_SECONDS", limit.to_string()),
        ]
    }
}

fn number(option: &str, word: Option<&&str>) -> Result<u64, Failure> {
    let number = word.and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("{option} takes a number"))
}

pub(crate) fn run(plan: &Plan) -> Result<(), Failure> {
    test::with_real_server(plan.servers, |servers, variables| {
        step("soak", || {
            let mut soak = cargo();
            // `--workspace` keeps the features of the other builds; without it, cargo would rebuild dependencies.
            soak.args(["test", "--workspace", "--test", "soak", "--"]);
            // One server at a time, because the test counts threads and file descriptors.
            soak.args(["--test-threads=1", "--nocapture"]);
            soak.args(servers.skipped().iter().flat_map(|name| ["--skip", name]));
            succeed(soak.envs(variables).envs(plan.variables()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_first_seed_and_the_number_of_seeds() {
        let plan = Plan::parse(&["--seeds", "3", "--seed", "41", "--embedded"]).unwrap();
        assert_eq!((plan.seeds, plan.first), (3, 41));
        assert_eq!(plan.servers.skipped(), ["on_real"]);
        Plan::parse(&["--seeds"]).unwrap_err();
        Plan::parse(&["--seeds", "few"]).unwrap_err();
        Plan::parse(&["--embedded", "--real"]).unwrap_err();
        Plan::parse(&["--quick"]).unwrap_err();
    }

    // A variable that no test reads would be ignored silently.
    #[test]
    fn the_test_reads_every_variable() {
        let mut text = String::new();
        for path in [
            "crates/steersman-runtime/tests/soak.rs",
            "crates/steersman-testing/src/harness.rs",
        ] {
            text += &std::fs::read_to_string(crate::root().join(path)).unwrap();
        }
        for (name, _) in Plan::parse(&[]).unwrap().variables() {
            assert!(text.contains(name), "{name}");
        }
    }
}
