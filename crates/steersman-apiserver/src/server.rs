// SPDX-License-Identifier: Apache-2.0
//! The server and its builder.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    TryStreamExt,
    future::{Either, select},
};
use http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    admission::{self, AdmissionDenied, AdmissionRequest, Hook, HookCall, Hooks, InProcess, Progress},
    apiservice,
    auth::{self, Authenticator, Identity, rbac, token::Signer},
    background,
    body::Body,
    clock::{Clock, SystemClock},
    compression,
    fault::{self, Effect, Faults},
    handler::{self, Call, Content, Reply},
    observe::{Exchange, Observer},
    random::Random,
    resource::{Registry, builtin},
    route::Query,
    service::{ConnectionLost, Service},
    state::{Context, Settings, State},
    status::Failure,
    store::{Retention, Store},
    warning,
    workloads::{self, Workloads},
    write::admission::priority,
};

/// Timeout of a request that waits for a future revision.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// A Kubernetes API server in this process. Clones share one server.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) clock: Arc<dyn Clock>,
    /// Publishes the newest revision to waiting requests and watches.
    pub(crate) revisions: watch::Sender<u64>,
    observer: Option<Observer>,
    /// The addresses of the services that webhooks name, by namespace, name and port.
    pub(crate) services: BTreeMap<(String, String, u16), SocketAddr>,
    state: Mutex<State>,
}

impl ApiServer {
    /// Creates a builder with default options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Creates a service for in-process clients. Requests without a token act as [`Identity::admin`].
    #[must_use]
    pub fn service(&self) -> Service {
        self.service_as(Identity::admin())
    }

    /// Creates a service as [`Self::service`] does; requests without a token act as `identity`.
    #[must_use]
    pub fn service_as(&self, identity: Identity) -> Service {
        Service::new(Arc::clone(&self.inner), identity)
    }

    /// Returns the control of fault injection.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(Arc::clone(&self.inner))
    }

    /// Returns the newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.lock().store.revision()
    }

    /// Runs one item of background work; returns false if the queue is empty.
    ///
    /// Only servers built with [`Builder::stepped`] need this call; other servers run background work with each
    /// request.
    pub fn step(&self) -> bool {
        let mut state = self.inner.lock();
        let mut cx = Context::of_server(&mut state, self.inner.clock.now());
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        let done = background::step(&mut cx);
        let revision = state.store.revision();
        drop(state);
        self.inner.announce(revision);
        done
    }

    /// Runs all queued background work; returns the number of items.
    pub fn settle(&self) -> usize {
        std::iter::from_fn(|| self.step().then_some(())).count()
    }

    /// Registers a bearer token for an identity.
    pub fn add_token(&self, token: impl Into<String>, identity: Identity) {
        self.inner.lock().authenticator.insert(token.into(), identity);
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

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
            pending: std::collections::VecDeque::new(),
            counter: 0,
            owners: background::collect::Owners::default(),
            expiry: background::expiry::Expiry::default(),
            compaction: crate::store::compaction::Compaction::default(),
            served_definitions: std::collections::BTreeMap::new(),
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

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug, but the state is still a fold of the log, so the server continues.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, revision: u64) {
        self.revisions.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
    }

    /// Returns the time until simulated workloads have work to do; `None` if nothing is scheduled.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let due = self.lock().world.next_due()?;
        Some(due.duration_since(self.clock.now()).unwrap_or_default())
    }

    /// Runs the simulated work that is due.
    pub(crate) fn tick(&self) {
        let mut state = self.lock();
        let mut cx = Context::of_server(&mut state, self.clock.now());
        workloads::wake(&mut cx);
        if cx.state.settings.immediate {
            while background::step(&mut cx) {}
        }
        let revision = state.store.revision();
        drop(state);
        self.announce(revision);
    }

    /// Serves one request.
    pub(crate) async fn serve(
        self: Arc<Self>,
        request: Request<Bytes>,
        default: Identity,
    ) -> Result<Response<Body>, ConnectionLost> {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let mut call = Call {
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query,
            headers: parts.headers,
            body,
            identity: default,
            received: self.clock.now(),
        };
        let answer = self.admit(&mut call).await;
        if let Some(observer) = &self.observer {
            let took = self.clock.now().duration_since(call.received);
            observer.see(&call, &parts.uri, &answer, took.unwrap_or_default());
        }
        answer
    }

    /// Authenticates the request, injects faults, and answers.
    async fn admit(self: &Arc<Self>, call: &mut Call) -> Result<Response<Body>, ConnectionLost> {
        if let Err(failure) = handler::options::check_timeout(call) {
            return Ok(failed(&failure));
        }
        let identified = {
            let mut state = self.lock();
            let mut cx = Context::of_server(&mut state, self.clock.now());
            auth::authenticate(&mut cx, call)
        };
        match identified {
            Ok(identity) => call.identity = identity,
            Err(failure) => return Ok(failed(&failure)),
        }
        let effects = self.lock().faults.strike(call);
        for effect in &effects {
            match effect {
                Effect::Delay(duration) => self.clock.sleep(*duration).await,
                Effect::TooManyRequests { retry_after_seconds } => {
                    let message =
                        "the server has received too many requests and has asked us to try again later";
                    return Ok(failed(&Failure::too_many_requests(message, *retry_after_seconds)));
                }
                Effect::Fail { code } => return Ok(failed(&fault_failure(*code))),
                _ => {}
            }
        }
        let response = self.answer(call, &effects).await;
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::LoseResponse))
        {
            return Err(ConnectionLost::new());
        }
        Ok(response)
    }

    async fn answer(self: &Arc<Self>, call: &Call, effects: &[Effect]) -> Response<Body> {
        let mut patience = None;
        let mut raced = false;
        let mut progress = Progress::default();
        loop {
            let race = !raced && effects.iter().any(|effect| matches!(effect, Effect::Race));
            raced = true;
            let (outcome, mut warnings) = self.dispatch(call, race, &mut progress);
            if let Some(task) = progress.take_pending() {
                progress.advance(self, task).await;
                continue;
            }
            let mut reply = match outcome {
                Ok(reply) => reply,
                Err(failure) => return warned(failed(&failure), &warnings),
            };
            reply.warnings.append(&mut warnings);
            if let Content::List(list) = &mut reply.content
                && let Err(failure) = list.convert(self).await
            {
                return warned(failed(&failure), &reply.warnings);
            }
            let Content::Wait(revision) = reply.content else {
                return self.finish(call, effects, reply);
            };
            let patience = patience.get_or_insert_with(|| self.clock.sleep(REVISION_WAIT));
            let mut revisions = self.revisions.subscribe();
            let reached = std::pin::pin!(revisions.wait_for(|current| *current >= revision));
            if let Either::Right(_) = select(reached, patience).await {
                let failure = Failure::revision_too_large(revision, self.lock().store.revision());
                let is_watch = call
                    .resource_request()
                    .is_some_and(|(verb, _)| verb == crate::route::Verb::Watch);
                return if is_watch {
                    stream_of_failure(&failure)
                } else {
                    failed(&failure)
                };
            }
        }
    }

    /// Handles the request under the lock. If [`Progress::take_pending`] then returns a task, the reply is not final.
    fn dispatch(
        &self,
        call: &Call,
        race: bool,
        progress: &mut Progress,
    ) -> (crate::status::Result<Reply>, Vec<String>) {
        let mut state = self.lock();
        let mut cx = Context::of_server(&mut state, self.clock.now());
        let revision = cx.state.store.revision();
        cx.state.compaction.advance(cx.now, revision);
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        if race {
            fault::race(&mut cx, call);
        }
        let (reply, warnings) = progress.attempt(&mut cx, call);
        if cx.state.settings.immediate {
            while background::step(&mut cx) {}
        }
        let revision = state.store.revision();
        drop(state);
        self.announce(revision);
        (reply, warnings)
    }

    fn finish(self: &Arc<Self>, call: &Call, effects: &[Effect], reply: Reply) -> Response<Body> {
        let takes_gzip = compression::is_accepted(&call.headers);
        let mut is_compressed = false;
        let mut once = |bytes: Bytes| {
            let compressed = if takes_gzip {
                compression::compress(&bytes)
            } else {
                None
            };
            is_compressed = compressed.is_some();
            Body::once(compressed.unwrap_or(bytes))
        };
        let body = match reply.content {
            Content::Bytes(bytes) => once(bytes),
            Content::List(list) => {
                let items = list.items.iter().map(|stored| &**stored);
                once(list.representation.list(&list.metadata, items))
            }
            Content::Watch(plan) => {
                is_compressed = takes_gzip && plan.begins_with_state();
                let control = self.lock().faults.hold(call, effects);
                let stream = handler::watch::stream(Arc::clone(self), *plan, control);
                if is_compressed {
                    let mut pieces = compression::Pieces::new();
                    Body::stream(stream.map_ok(move |bytes| pieces.next(&bytes)))
                } else {
                    Body::stream(stream)
                }
            }
            Content::Wait(_) => Body::once(Bytes::new()),
        };
        let slow = effects.iter().find_map(|effect| match effect {
            Effect::SlowBody { bytes, pause } => Some((*bytes, *pause)),
            _ => None,
        });
        let body = match slow {
            Some((bytes, pause)) => body.slowed(Arc::clone(&self.clock), bytes, pause),
            None => body,
        };
        let mut response = respond(reply.code, body);
        if is_compressed {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if reply.code == StatusCode::NO_CONTENT {
            response.headers_mut().remove(header::CONTENT_TYPE);
        }
        for (name, value) in reply.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        warned(response, &reply.warnings)
    }
}

fn warned(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for value in warning::headers(warnings) {
        response.headers_mut().append(header::WARNING, value);
    }
    response
}

fn respond(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

pub(crate) fn failed(failure: &Failure) -> Response<Body> {
    if failure.is_plain() {
        let mut response = respond(
            failure.code,
            Body::once(Bytes::from(failure.message().to_owned())),
        );
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        return response;
    }
    let mut response = respond(failure.code, Body::once(Bytes::from(failure.body().to_string())));
    if let Some(seconds) = failure.retry_after_seconds() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn stream_of_failure(failure: &Failure) -> Response<Body> {
    let line = json!({"type": "ERROR", "object": failure.body()});
    respond(StatusCode::OK, Body::once(Bytes::from(format!("{line}\n"))))
}

fn fault_failure(code: u16) -> Failure {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        StatusCode::SERVICE_UNAVAILABLE => {
            Failure::unavailable("the server is currently unable to handle the request")
        }
        StatusCode::GATEWAY_TIMEOUT => Failure::new(
            code,
            "Timeout",
            "Timeout: request did not complete within the allotted timeout",
        ),
        StatusCode::INTERNAL_SERVER_ERROR => Failure::internal("an injected fault"),
        _ => Failure::new(code, "", "an injected fault"),
    }
}
