// SPDX-License-Identifier: Apache-2.0
//! A replica of the demo's operator as a separate process: the same binary, run again.
//!
//! It is the unchanged operator of [`steersman_demo`], with a shorter lease, a pipe to the process that started it, and
//! lines on standard output that report its state to that process.

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

/// Namespace of the lease and of all other objects in the demo.
pub(crate) const NAMESPACE: &str = "default";

/// Name of the cluster that is added and removed.
pub(crate) const EDGE: &str = "edge";

/// Lease duration in the demo. The default is 15 s, which is too long to watch.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(3);

const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(400);

/// Polling interval for state without a notification.
const LOOK: Duration = Duration::from_millis(10);

/// Exit code when the process that started it has ended.
const ORPHANED: i32 = 3;

/// State of a replica, printed as one line whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct State {
    /// Set if it is the leader.
    pub(crate) leads: bool,
    /// Set if it is warm: its caches are in sync and it could lead at once.
    pub(crate) warm: bool,
    /// Controllers that are dormant because their kind is not installed.
    pub(crate) dormant: Vec<String>,
    /// Set if it works on the second cluster.
    pub(crate) edge: bool,
}

pub(crate) fn main(options: &Replica) -> Outcome {
    // The process that started this one holds the other end of the pipe, which is closed when that process dies.
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
    // The demo distinguishes the requests of replicas by this name.
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

/// Prints the state whenever it changes, without end.
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
