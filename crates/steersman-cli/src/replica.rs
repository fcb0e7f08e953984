// SPDX-License-Identifier: Apache-2.0
//! A replica of the demo's operator, as a process of its own: the same binary, run again.
//!
//! It is the operator of [`steersman_demo`] as it stands there. What is added is a shorter lease, a tie to the
//! process that started it, and lines on standard output by which that process knows how it stands.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    process, thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use steersman_cluster::{Cluster, ClusterName};
use steersman_core::{Clock, TokioClock};
use steersman_demo as site;
use steersman_runtime::{Election, Logging, MainError, Manager, RunnableStatus};

use crate::{
    args::Replica,
    exit::{End, Outcome},
};

/// The namespace of the lease, and of everything else in the demo.
pub(crate) const NAMESPACE: &str = "default";

/// The cluster that comes and goes.
pub(crate) const EDGE: &str = "edge";

/// How long a lease lasts in the demo. The default is 15 s; nobody wants to watch that.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(3);

const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(400);

/// How often it looks at what cannot be waited for.
const LOOK: Duration = Duration::from_millis(10);

/// The code with which it ends when nobody holds its tie any more.
const ORPHANED: i32 = 3;

/// How a replica stands, as it says on a line of its own whenever that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct State {
    /// Whether it acts.
    pub(crate) leads: bool,
    /// Whether it could act at once.
    pub(crate) warm: bool,
    /// Controllers that rest because their kind is not installed.
    pub(crate) dormant: Vec<String>,
    /// Whether it works on the second cluster.
    pub(crate) edge: bool,
}

pub(crate) fn main(options: &Replica) -> Outcome {
    // The other end of the pipe is held by the process that started this one, and closes when that dies.
    thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = io::stdin().read_to_end(&mut nothing);
        process::exit(ORPHANED);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run(&options.name));
    ended.map_err(|fatal| fatal.to_string())?;
    Ok(End::Done)
}

async fn run(name: &str) -> Result<(), MainError> {
    Logging::from_env().install()?;
    let election = Election::new(site::LEASE)
        .namespace(NAMESPACE)
        .identity(name)
        .lease_duration(LEASE_DURATION)
        .renew_deadline(RENEW_DEADLINE)
        .retry_period(RETRY_PERIOD);
    // By its name the demo tells this replica's requests from those of the others.
    let home = Cluster::builder(ClusterName::default()).user_agent(name);
    let manager = Manager::builder()
        .cluster(home.build().await?)
        .leader_election(election)
        .build()
        .await?;
    tokio::select! {
        biased;
        ended = site::run(&manager) => ended,
        failed = report(&manager) => Ok(failed?),
    }
}

/// Says how it stands whenever that has changed, for ever.
async fn report(manager: &Manager) -> io::Result<()> {
    let clock = TokioClock::new();
    let mut said = None;
    loop {
        let standings = manager.statuses().all();
        let state = state(manager, &standings);
        if said.as_ref() != Some(&state) {
            let line = serde_json::to_string(&state)?;
            let mut stdout = io::stdout();
            writeln!(stdout, "{line}")?;
            stdout.flush()?;
            said = Some(state);
        }
        tokio::select! {
            biased;
            () = manager.statuses().when(|now| *now != standings) => {}
            () = clock.sleep_until(clock.now() + LOOK) => {}
        }
    }
}

fn state(manager: &Manager, standings: &BTreeMap<String, RunnableStatus>) -> State {
    let rests = |standing: &RunnableStatus| matches!(standing, RunnableStatus::Dormant { .. });
    let dormant = standings.iter().filter(|(_, standing)| rests(standing));
    State {
        leads: manager.is_leading(),
        warm: standings.len() >= 2 && standings.values().all(RunnableStatus::is_ready),
        dormant: dormant.map(|(name, _)| name.clone()).collect(),
        edge: manager.cluster_named(&ClusterName::from(EDGE)).is_some(),
    }
}
