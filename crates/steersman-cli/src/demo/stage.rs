// SPDX-License-Identifier: Apache-2.0
//! API servers, replicas as processes, and informers of the demo.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use steersman_apiserver::Workloads;
use steersman_cluster::{Client, Cluster, ConnectError};
use steersman_core::{MonotonicTime, ObjectKey};
use steersman_demo::{self as site, Web};

use super::{
    program::Program,
    requests::{Requests, USER_AGENT},
    scene::Scene,
    sight::Sight,
    step::{StepError, ensure},
};
use crate::{
    args::Demo,
    caretaker::{Caretaker, CaretakerError},
    replica::NAMESPACE,
    server::{self, KubeconfigError, Server, ServerError},
};

/// Simulated start-up time of a Pod.
pub(crate) const STARTUP: Duration = Duration::from_millis(100);

/// Names of the replicas, in order.
const NAMES: [&str; 12] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
];

/// A part of the demo cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    #[error(transparent)]
    Directory(#[from] CaretakerError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the demo's own kubeconfig is invalid")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot connect to the demo's own API server")]
    Connect(#[from] ConnectError),
    #[error("cannot run a second copy of this program")]
    Program(#[source] io::Error),
}

/// All resources of the demo. Dropping it stops the replicas first, and removes the directory last.
#[derive(Debug)]
pub(crate) struct Stage {
    replicas: Vec<Program>,
    /// Number of replicas started so far.
    started: usize,
    scene: Scene,
    pub(crate) home: Place,
    pub(crate) leases: Sight<Lease>,
    pub(crate) requests: Requests,
    pub(crate) is_fast: bool,
    kubeconfig: PathBuf,
    caretaker: Caretaker,
}

/// A cluster: its server, and informers on it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) webs: Sight<Web>,
    pub(crate) maps: Sight<ConfigMap>,
    cluster: Cluster,
    server: Server,
}

impl Stage {
    /// Starts an API server without replicas.
    pub(crate) async fn set(options: &Demo) -> Result<Self, StageError> {
        let caretaker = Caretaker::start()?;
        let requests = Requests::default();
        let home = Place::open("home", options.port, &requests).await?;
        let kubeconfig = caretaker.dir().join("kubeconfig");
        server::write_kubeconfig(&kubeconfig, home.kubeconfig())?;
        Ok(Self {
            replicas: Vec::new(),
            started: 0,
            scene: Scene::new(home.cluster.client()),
            leases: Sight::open(&home.cluster).await,
            home,
            requests,
            is_fast: options.fast,
            kubeconfig,
            caretaker,
        })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn scene(&self) -> Scene {
        self.scene.clone()
    }

    pub(crate) fn now(&self) -> MonotonicTime {
        self.home.cluster.clock().now()
    }

    pub(crate) fn since(&self, moment: MonotonicTime) -> Duration {
        self.now().saturating_since(moment)
    }

    /// Returns the number of repetitions: `fast` in fast mode.
    pub(crate) fn rounds(&self, fast: usize, otherwise: usize) -> usize {
        if self.is_fast { fast } else { otherwise }
    }

    pub(crate) fn replicas(&self) -> &[Program] {
        &self.replicas
    }

    /// Starts another replica, and waits until it is warm; returns how long that took.
    pub(crate) async fn add_replica(&mut self) -> Result<Duration, StepError> {
        let began = self.now();
        let name = NAMES.get(self.started).map_or_else(
            || format!("replica-{}", self.started + 1),
            |name| (*name).to_owned(),
        );
        self.started += 1;
        let program = Program::start(&name, &self.kubeconfig, self.caretaker.dir());
        let program = program.map_err(|error| Box::new(StageError::Program(error)))?;
        self.scene.enter(&name, program.state());
        self.replicas.push(program);
        let program = &self.replicas[self.replicas.len() - 1];
        program.when("is warm", |state| state.warm).await?;
        Ok(self.since(began))
    }

    /// Removes the replica that holds the lease. Requires another warm replica.
    pub(crate) async fn take_leader(&mut self) -> Result<Program, StepError> {
        let holder = self.holder(|_| true).await?;
        let position = self.replicas.iter().position(|program| program.name() == holder);
        let Some(position) = position else {
            let what = format!("the lease is held by {holder}, which is none of the demo's replicas");
            return Err(StepError::Untrue { what });
        };
        for other in self.replicas.iter().filter(|other| other.name() != holder) {
            other.when("is warm", |state| state.warm).await?;
        }
        ensure(self.replicas.len() > 1, "there is no replica to take over")?;
        let leader = self.replicas.remove(position);
        leader.when("leads", |state| state.leads).await?;
        self.scene.leave(&holder);
        Ok(leader)
    }

    /// Waits until a replica that `is_wanted` accepts holds the lease.
    pub(crate) async fn holder(&self, is_wanted: impl Fn(&str) -> bool) -> Result<String, StepError> {
        let key = ObjectKey::new(NAMESPACE, site::LEASE);
        let wanted = |lease: Option<&Lease>| {
            let holder = lease?.spec.as_ref()?.holder_identity.clone()?;
            (!holder.is_empty() && is_wanted(&holder)).then_some(holder)
        };
        self.leases.until("a replica takes the lease", &key, wanted).await
    }
}

impl Place {
    /// Starts a server and its informers.
    pub(crate) async fn open(name: &str, port: u16, requests: &Requests) -> Result<Self, StageError> {
        let requests = requests.clone();
        let builder = server::builder()
            .workloads(Workloads::default().nodes(3).startup(STARTUP))
            .observe(move |exchange| requests.note(exchange));
        let server = Server::start(builder, port).await?;
        let config = config(server.kubeconfig()).await.map_err(StageError::Config)?;
        let cluster = Cluster::builder(name)
            .config(config)
            .user_agent(USER_AGENT)
            .field_manager("demo")
            .build()
            .await?;
        // Before the informers start: a missing kind is only polled at intervals.
        let installed = async {
            let client = cluster.live().force();
            client.apply(&site::definitions()[0]).await
        };
        installed
            .await
            .map_err(|error| StageError::Config(error.into()))?;
        Ok(Self {
            webs: Sight::open(&cluster).await,
            maps: Sight::open(&cluster).await,
            cluster,
            server,
        })
    }

    pub(crate) fn kubeconfig(&self) -> &str {
        self.server.kubeconfig()
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Returns a client that writes to and reads from the server.
    pub(crate) fn client(&self) -> Client {
        self.cluster.live().force()
    }

    /// Applies a Web, as a user would.
    pub(crate) async fn apply_web(&self, name: &str, page: &str) -> Result<(), StepError> {
        let web: Web = serde_json::from_value(json!({
            "apiVersion": "examples.steersman.dev/v1",
            "kind": "Web",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"page": page, "replicas": 2},
        }))?;
        self.client().apply(&web).await?;
        Ok(())
    }

    /// Waits until the ConfigMap of a Web has its page.
    pub(crate) async fn has_page(&self, name: &str, page: &str) -> Result<(), StepError> {
        let what = format!("the ConfigMap of Web {name} has its page");
        let is_there = |map: Option<&ConfigMap>| {
            let found = map?.data.as_ref()?.get("index.html")?;
            (found == page).then_some(())
        };
        self.maps.until(what, &key(name), is_there).await
    }
}

/// Returns the key of an object of the demo.
pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

async fn config(kubeconfig: &str) -> Result<Config, Box<dyn std::error::Error + Send + Sync>> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // Loopback connections must not use a proxy.
    config.proxy_url = None;
    Ok(config)
}
