// SPDX-License-Identifier: Apache-2.0
//! The benchmarks and their participants. `bench/README.md` specifies the interface of a program.

use super::program::Program;

/// A benchmark.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// The way to run a benchmark.
#[derive(Debug)]
pub(super) enum Kind {
    /// Each program runs alone, and prints the name of its participant.
    Direct(&'static [Program]),
    /// A driver prepares a server and runs the participants in turn.
    Driven {
        driver: &'static str,
        participants: &'static [Participant],
    },
}

/// A program that a driver runs, with its name in the table.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) who: &'static str,
    pub(super) program: Program,
}

pub(super) const BENCHES: &[Bench] = &[
    Bench {
        name: "queue",
        kind: Kind::Direct(&[
            Program::Rust {
                package: "bench-queue",
                bin: "bench-queue",
            },
            Program::Go { module: "queue" },
        ]),
    },
    Bench {
        name: "apiserver",
        kind: Kind::Direct(&[Program::Rust {
            package: "bench-apiserver",
            bin: "bench-apiserver",
        }]),
    },
    Bench {
        name: "conditional",
        kind: Kind::Direct(&[Program::Rust {
            package: "bench-conditional",
            bin: "bench-conditional",
        }]),
    },
    Bench {
        name: "failover",
        kind: Kind::Driven {
            driver: "bench-failover",
            participants: &[
                Participant {
                    who: "steersman",
                    program: Program::Rust {
                        package: "bench-failover",
                        bin: "replica",
                    },
                },
                Participant {
                    who: "controller-runtime",
                    program: Program::Go { module: "failover" },
                },
            ],
        },
    },
    Bench {
        name: "sync",
        kind: Kind::Driven {
            driver: "bench-sync",
            participants: &[
                ours("sync"),
                kube_runtime("sync"),
                go("client-go"),
                go("client-go protobuf"),
                go("controller-runtime"),
            ],
        },
    },
    Bench {
        name: "events",
        kind: Kind::Driven {
            driver: "bench-events",
            participants: &[
                ours("events"),
                kube_runtime("events"),
                go("client-go"),
                go("controller-runtime"),
            ],
        },
    },
    Bench {
        name: "read",
        kind: Kind::Driven {
            driver: "bench-read",
            participants: &[
                ours("read"),
                kube_runtime("read"),
                go("client-go"),
                go("controller-runtime"),
            ],
        },
    },
    Bench {
        name: "reconcile",
        kind: Kind::Driven {
            driver: "bench-reconcile",
            participants: &[
                Participant {
                    who: "steersman",
                    program: Program::Rust {
                        package: "bench-controller",
                        bin: "reconcile",
                    },
                },
                kube_runtime("reconcile"),
                go("controller-runtime"),
            ],
        },
    },
    Bench {
        name: "kit",
        kind: Kind::Driven {
            driver: "bench-kit",
            participants: &[
                Participant {
                    who: "steersman",
                    program: Program::Rust {
                        package: "bench-kit",
                        bin: "operator",
                    },
                },
                kube_runtime("kit"),
                go("controller-runtime"),
            ],
        },
    },
];

const fn ours(bin: &'static str) -> Participant {
    Participant {
        who: "steersman",
        program: Program::Rust {
            package: "bench-cache",
            bin,
        },
    }
}

const fn kube_runtime(bin: &'static str) -> Participant {
    Participant {
        who: "kube-runtime",
        program: Program::RustPeer { bin },
    }
}

const fn go(who: &'static str) -> Participant {
    Participant {
        who,
        program: Program::Go { module: "cache" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn every_program_has_its_source() {
        for bench in BENCHES {
            let (driver, participants) = match bench.kind {
                Kind::Direct(_) => continue,
                Kind::Driven { driver, participants } => (driver, participants),
            };
            let place = driver.replacen('-', "/", 1);
            assert!(root().join(place).join("src/main.rs").is_file(), "{driver}");
            for participant in participants {
                let source = match participant.program {
                    Program::RustPeer { bin } => format!("bench/peers/rust/src/bin/{bin}.rs"),
                    Program::Go { module } => format!("bench/peers/go/{module}/go.mod"),
                    Program::Rust { .. } | Program::Driver { .. } => continue,
                };
                assert!(root().join(&source).is_file(), "{source}");
            }
        }
    }
}
