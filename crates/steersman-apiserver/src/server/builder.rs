// SPDX-License-Identifier: Apache-2.0
//! The builder of a server, and the objects that every new server contains.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tokio::sync::watch;

use super::{ApiServer, Inner};
use crate::{
    admission::{self, AdmissionDenied, AdmissionRequest, Hook, HookCall, Hooks, InProcess},
    apiservice,
    auth::{Authenticator, Identity, rbac, token::Signer},
    background,
    clock::{Clock, SystemClock},
    fault, handler,
    observe::{Exchange, Observer},
    random::Random,
    resource::{Registry, builtin},
    state::{Context, Settings, State},
    store::{Retention, Store},
    workloads::{self, Workloads},
    write::admission::priority,
};

/// Options of a server.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    clock: Arc<dyn Clock>,
    seed: u64,
    settings: Settings,
    retention: Retention,
    tokens: Vec<(String, Identity)>,
    workloads: Option<Workloads>,
    observer: Option<Observer>,
    services: BTreeMap<(String, String, u16), SocketAddr>,
    hooks: InProcess,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            seed: 0,
            settings: Settings {
                rbac: false,
                garbage_collection: true,
                namespace_deletion: true,
                quota_usage: true,
                policy_status: true,
                webhooks: true,
                immediate: true,
            },
            retention: Retention {
                entries: 20_000,
                bytes: 64 * 1024 * 1024,
            },
            tokens: Vec::new(),
            workloads: None,
            observer: None,
            services: BTreeMap::new(),
            hooks: InProcess::default(),
        }
    }
}

impl Builder {
    /// Sets the clock. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets the seed of uids, generated names and secrets. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Enables RBAC authorization. Default: false; every identity is allowed everything.
    pub fn rbac(mut self, on: bool) -> Self {
        self.settings.rbac = on;
        self
    }

    /// Registers a bearer token for an identity. Default: no tokens.
    pub fn token(mut self, token: impl Into<String>, identity: Identity) -> Self {
        self.tokens.push((token.into(), identity));
        self
    }

    /// Enables the garbage collector, which deletes objects whose owners no longer exist, and the protection
    /// controllers, which delete terminating claims and volumes once no object uses them. Default: true.
    pub fn garbage_collection(mut self, on: bool) -> Self {
        self.settings.garbage_collection = on;
        self
    }

    /// Enables the namespace controller, which empties and removes deleted namespaces. Default: true.
    pub fn namespace_deletion(mut self, on: bool) -> Self {
        self.settings.namespace_deletion = on;
        self
    }

    /// Enables the ResourceQuota controller, which writes the status of quotas as the controller manager does. Default:
    /// true. If disabled, quotas limit nothing until a client writes their status.
    pub fn quota_usage(mut self, on: bool) -> Self {
        self.settings.quota_usage = on;
        self
    }

    /// Enables the controller that checks the types in admission policies and writes its warnings into their status.
    /// Default: true.
    pub fn policy_status(mut self, on: bool) -> Self {
        self.settings.policy_status = on;
        self
    }

    /// Simulates workloads: Pods become ready, and so do the kinds that create Pods. Default: off.
    pub fn workloads(mut self, workloads: Workloads) -> Self {
        self.workloads = Some(workloads);
        self
    }

    /// Leaves background work to [`ApiServer::step`]. Default: a request runs the background work that it causes.
    pub fn stepped(mut self) -> Self {
        self.settings.immediate = false;
        self
    }

    /// Sets how many writes the log keeps for watches and for lists at past revisions. Default: 20 000, at most 64 MiB.
    pub fn history(mut self, entries: usize) -> Self {
        self.retention.entries = entries.max(1);
        self
    }

    /// Sets a callback that runs for each request when its response begins. It runs in the request's path and delays
    /// it, so it should be quick. Default: none.
    pub fn observe(mut self, see: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer::new(see));
        self
    }

    /// Calls the webhooks of webhook configurations. Default: true. If disabled, configurations are stored and have no
    /// effect.
    pub fn webhooks(mut self, on: bool) -> Self {
        self.settings.webhooks = on;
        self
    }

    /// Names the address at which webhooks reach a port of a Service. The server routes to no Pods, so it cannot find
    /// the address itself. Default: none, and a call of a webhook by Service fails.
    pub fn service_address(
        mut self,
        namespace: impl Into<String>,
        name: impl Into<String>,
        port: u16,
        address: impl Into<SocketAddr>,
    ) -> Self {
        self.services
            .insert((namespace.into(), name.into(), port), address.into());
        self
    }

    /// Adds an admission hook that changes objects before they are validated. It runs for every create and update by a
    /// client, before mutating webhooks and in the order of the calls; `name` appears in denials. Default: none.
    ///
    /// ```
    /// use steersman_apiserver::{AdmissionDenied, ApiServer};
    ///
    /// let server = ApiServer::builder().mutating_hook("teams.example.com", |request, object| {
    ///     if request.namespace() == "locked" {
    ///         return Err(AdmissionDenied::new("the namespace is locked"));
    ///     }
    ///     object["metadata"]["labels"]["team"] = "blue".into();
    ///     Ok(())
    /// });
    /// ```
    pub fn mutating_hook(
        mut self,
        name: impl Into<String>,
        hook: impl Fn(&AdmissionRequest, &mut serde_json::Value) -> Result<(), AdmissionDenied>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let hook = Hook::closure(name.into(), HookCall::Mutating(Arc::new(hook)));
        self.hooks.mutating.push(Arc::new(hook));
        self
    }

    /// Adds an admission hook that allows or denies writes. It runs for every create, update and deletion by a client,
    /// beside validating webhooks; `name` appears in denials. Default: none.
    pub fn validating_hook(
        mut self,
        name: impl Into<String>,
        hook: impl Fn(&AdmissionRequest) -> Result<(), AdmissionDenied> + Send + Sync + 'static,
    ) -> Self {
        let hook = Hook::closure(name.into(), HookCall::Validating(Arc::new(hook)));
        self.hooks.validating.push(Arc::new(hook));
        self
    }

    /// Builds and starts the server.
    #[must_use]
    pub fn build(self) -> ApiServer {
        let mut store = Store::new(self.retention);
        let registry = Registry::new(builtin::resources(&mut store));
        let mut random = Random::new(self.seed);
        let signer = Signer::new(&mut random);
        let mut authenticator = Authenticator::default();
        for (token, identity) in self.tokens {
            authenticator.insert(token, identity);
        }
        let mut state = State {
            store,
            registry,
            random,
            settings: self.settings,
            authenticator,
            signer,
            faults: fault::Rules::default(),
            pending: VecDeque::new(),
            counter: 0,
            owners: background::collect::Owners::default(),
            expiry: background::expiry::Expiry::default(),
            compaction: crate::store::compaction::Compaction::default(),
            served_definitions: BTreeMap::new(),
            discovery: handler::discovery::Cache::default(),
            policies: crate::policy::Policies::default(),
            metrics: handler::metrics::Metrics::default(),
            world: workloads::World::new(self.workloads),
            hooks: Hooks {
                in_process: self.hooks,
                ..Hooks::default()
            },
        };
        admission::refresh(&mut state);
        furnish(&mut Context::of_server(&mut state, self.clock.now()));
        let revisions = watch::Sender::new(state.store.revision());
        ApiServer {
            inner: Arc::new(Inner {
                clock: self.clock,
                revisions,
                observer: self.observer,
                services: self.services,
                state: Mutex::new(state),
            }),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("seed", &self.seed)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Creates the objects that every new server contains.
fn furnish(cx: &mut Context<'_>) {
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let object = json!({
            "metadata": {"labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        cx.plant("", "namespaces", "", name, object);
    }
    let service = json!({
        "metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            "sessionAffinity": "None", "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    });
    cx.plant("", "services", "default", "kubernetes", service);
    priority::plant(cx);
    apiservice::plant(cx);
    if cx.state.settings.rbac {
        rbac::plant(cx);
    }
    workloads::furnish(cx);
    while background::step(cx) {}
}
