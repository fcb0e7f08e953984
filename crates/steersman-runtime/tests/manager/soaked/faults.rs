// SPDX-License-Identifier: Apache-2.0
//! Faults, at random: on the wire of a replica, in its permissions, and of its process.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use steersman_testing::{
    Grant,
    proxy::{Cut, Fault, Frozen, Injected, Matching, Unplugged},
};

use super::{Chance, Replica, Round, now};

/// Answers of gateways that are no API servers, and of servers that are broken: status, content type, body.
const GARBAGE: [(u16, &str, &str); 11] = [
    (200, "application/json", "{}"),
    (200, "application/json", r#"{"status":"ok"}"#),
    (
        200,
        "application/json",
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#,
    ),
    (
        200,
        "application/json",
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"ite"#,
    ),
    (
        200,
        "application/json",
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#,
    ),
    (200, "application/json", "null"),
    (200, "application/json", "[]"),
    (200, "application/json", ""),
    (200, "text/html", "<html><body>Welcome</body></html>"),
    (404, "text/html", "<html><body>404 page not found</body></html>"),
    (502, "text/html", "<html><body>Bad Gateway</body></html>"),
];

/// Kinds whose reads are broken.
const KINDS: [&str; 2] = ["/configmaps", "/secrets"];

const FAULTS: [Action; 14] = [
    ("cut watches", cut_watches),
    ("expire watches", expire_watches),
    ("conflict", |chance| on_writes(chance, Fault::answer(409))),
    ("throttle", |chance| {
        some(Matching::any(), chance, Fault::answer_retry_after(429, 1))
    }),
    ("error", |chance| {
        some(Matching::any(), chance, Fault::answer(500))
    }),
    ("unavailable", |chance| {
        some(Matching::any(), chance, Fault::answer(503))
    }),
    ("lose responses", |chance| {
        on_writes(chance, Fault::drop_response())
    }),
    ("garbage", garbage),
    ("stall reads", |chance| Do::Inject(reads(chance), Fault::stall())),
    ("delay", delay),
    ("revoke", |chance| Do::Revoke(chance.pick(&KINDS))),
    ("partition", |_| Do::Unplug),
    ("freeze", |_| Do::Freeze),
    ("replace", |chance| Do::Replace {
        kill: chance.below(2) == 0,
    }),
];

/// How many faults are in force at once at most: a replica that can do nothing makes no mistakes.
const MOST: usize = 3;

type Action = (&'static str, fn(&mut Chance) -> Do);

/// Effect of a fault on a replica.
enum Do {
    Cut(Cut),
    Inject(Matching, Fault),
    /// Answers so to reads of a kind, after its watch has expired.
    Garbage(&'static str, Fault),
    Revoke(&'static str),
    Unplug,
    Freeze,
    /// Ends the process, which is started again later.
    Replace {
        kill: bool,
    },
}

/// Faults in force, and how many there were of each kind.
#[derive(Default)]
pub(super) struct Faults {
    in_force: Vec<InForce>,
    counts: BTreeMap<&'static str, usize>,
}

struct InForce {
    until: Instant,
    replica: usize,
    held: Held,
}

/// Ends a fault on drop.
enum Held {
    Injected {
        _fault: Injected,
    },
    Garbage {
        _faults: [Injected; 2],
    },
    Unplugged {
        _fault: Unplugged,
    },
    Frozen {
        _fault: Frozen,
    },
    /// The permission is granted again.
    Revoked(&'static str),
    /// The process is started again.
    Ended,
}

impl Faults {
    /// How many faults there were.
    pub(super) fn count(&self) -> usize {
        self.counts.values().sum()
    }

    pub(super) fn kinds(&self) -> &BTreeMap<&'static str, usize> {
        &self.counts
    }

    /// Breaks something for a while, unless much is broken already.
    pub(super) async fn act(&mut self, chance: &mut Chance, replicas: &mut [Replica; 2]) {
        // All chances are taken in any case, so that a seed does the same whatever is in force.
        let (name, fault) = chance.pick(&FAULTS);
        let (index, fault) = (usize::from(chance.below(2) == 0), fault(chance));
        let length = Duration::from_millis(100 + chance.below(2_400));
        if self.in_force.len() >= MOST {
            return;
        }
        let replica = &mut replicas[index];
        let held = match fault {
            Do::Cut(cut) => {
                replica.proxy.cut(&Matching::watches(), cut);
                None
            }
            Do::Inject(matching, fault) => Some(Held::Injected {
                _fault: replica.proxy.inject(matching, fault),
            }),
            Do::Garbage(kind, fault) => {
                let expired = Matching::watches().path(kind).first(1);
                let expired = replica.proxy.inject(expired, Fault::error_event(410));
                let garbage = Matching::method("GET").path(kind);
                let garbage = replica.proxy.inject(garbage, fault);
                replica.proxy.cut(&Matching::watches().path(kind), Cut::Clean);
                Some(Held::Garbage {
                    _faults: [expired, garbage],
                })
            }
            Do::Unplug => Some(Held::Unplugged {
                _fault: replica.proxy.unplug(),
            }),
            Do::Freeze => Some(Held::Frozen {
                _fault: replica.proxy.freeze(),
            }),
            Do::Revoke(kind) => revoke(replica, kind).await,
            Do::Replace { kill } => end(replica, kill).await,
        };
        *self.counts.entry(name).or_default() += 1;
        if let Some(held) = held {
            self.in_force.push(InForce {
                until: now() + length,
                replica: index,
                held,
            });
        }
    }

    /// Ends the faults whose time is over.
    pub(super) async fn end_some(&mut self, replicas: &mut [Replica; 2], round: &Round<'_>) {
        let now = now();
        let (over, rest) = std::mem::take(&mut self.in_force)
            .into_iter()
            .partition(|one| one.until <= now);
        self.in_force = rest;
        undo(over, replicas, round).await;
    }

    /// Ends all faults.
    pub(super) async fn heal(&mut self, replicas: &mut [Replica; 2], round: &Round<'_>) {
        undo(std::mem::take(&mut self.in_force), replicas, round).await;
    }
}

async fn undo(faults: Vec<InForce>, replicas: &mut [Replica; 2], round: &Round<'_>) {
    for fault in faults {
        let replica = &mut replicas[fault.replica];
        match fault.held {
            Held::Revoked(kind) => grant(replica, kind).await,
            Held::Ended => replica.start(round).await,
            Held::Injected { .. } | Held::Garbage { .. } | Held::Unplugged { .. } | Held::Frozen { .. } => {}
        }
    }
}

async fn grant(replica: &mut Replica, kind: &'static str) {
    let resource = kind.trim_start_matches('/');
    let grant = replica.user.grant("", &[resource], &["*"]).await.unwrap();
    replica.grants.insert(kind, grant);
}

async fn revoke(replica: &mut Replica, kind: &'static str) -> Option<Held> {
    let grant: Grant = replica.grants.remove(kind)?;
    grant.revoke().await.unwrap();
    Some(Held::Revoked(kind))
}

/// Ends the process of a replica, at once or in good order. It might be about to start.
async fn end(replica: &mut Replica, kill: bool) -> Option<Held> {
    let (running, _) = replica.running.take()?;
    if kill {
        drop(running);
    } else {
        running.stop().await.unwrap();
    }
    Some(Held::Ended)
}

fn cut_watches(chance: &mut Chance) -> Do {
    Do::Cut(chance.pick(&[Cut::Clean, Cut::Abrupt, Cut::MidLine]))
}

fn expire_watches(chance: &mut Chance) -> Do {
    some(Matching::watches(), chance, Fault::error_event(410))
}

fn garbage(chance: &mut Chance) -> Do {
    let (code, content_type, body) = chance.pick(&GARBAGE);
    Do::Garbage(chance.pick(&KINDS), Fault::respond(code, content_type, body))
}

fn delay(chance: &mut Chance) -> Do {
    let time = Duration::from_millis(chance.below(500));
    Do::Inject(Matching::any(), Fault::delay(time))
}

/// Reads of one kind, watches included.
fn reads(chance: &mut Chance) -> Matching {
    Matching::method("GET").path(chance.pick(&KINDS))
}

fn on_writes(chance: &mut Chance, fault: Fault) -> Do {
    let method = chance.pick(&["PUT", "POST", "PATCH", "DELETE"]);
    some(Matching::method(method), chance, fault)
}

/// The next few requests that match.
fn some(matching: Matching, chance: &mut Chance, fault: Fault) -> Do {
    let few = usize::try_from(1 + chance.below(5)).unwrap_or(1);
    Do::Inject(matching.first(few), fault)
}
