// SPDX-License-Identifier: Apache-2.0
//! The server and how it is built.

use std::{
    fmt,
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

/// How long a request waits for a revision that is yet to come.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// A Kubernetes API server in this process. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) clock: Arc<dyn Clock>,
    /// The newest revision, for those who wait for the next.
    pub(crate) revisions: watch::Sender<u64>,
    observer: Option<Observer>,
    state: Mutex<State>,
}

impl ApiServer {
    /// A server with its defaults changed.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A service for clients in this process. Requests without a token are those of [`Identity::admin`].
    #[must_use]
    pub fn service(&self) -> Service {
        self.service_as(Identity::admin())
    }

    /// As [`Self::service`], for requests of somebody else.
    #[must_use]
    pub fn service_as(&self, identity: Identity) -> Service {
        Service::new(Arc::clone(&self.inner), identity)
    }

    /// Ways to make things go wrong.
    #[must_use]
    pub fn faults(&self) -> Faults {
        Faults::new(Arc::clone(&self.inner))
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.lock().store.revision()
    }

    /// Does one piece of background work; false if there is none.
    ///
    /// Needed only for servers that are built with [`Builder::stepped`]; others do such work by themselves.
    pub fn step(&self) -> bool {
        let mut state = self.inner.lock();
        let mut cx = Context {
            state: &mut state,
            now: self.inner.clock.now(),
            warnings: Vec::new(),
        };
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        let done = background::step(&mut cx);
        let revision = state.store.revision();
        drop(state);
        self.inner.announce(revision);
        done
    }

    /// Does all background work that is there; returns how many pieces it was.
    pub fn settle(&self) -> usize {
        std::iter::from_fn(|| self.step().then_some(())).count()
    }

    /// Makes a bearer token known.
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

/// The options of a server.
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
                immediate: true,
            },
            retention: Retention {
                entries: 20_000,
                bytes: 64 * 1024 * 1024,
            },
            tokens: Vec::new(),
            workloads: None,
            observer: None,
        }
    }
}

impl Builder {
    /// Where time comes from. The default is [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The seed of uids, generated names and secrets. The default is 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether access is controlled by roles and bindings. The default is no: everybody may do everything.
    pub fn rbac(mut self, on: bool) -> Self {
        self.settings.rbac = on;
        self
    }

    /// A bearer token and who it belongs to. The default is none.
    pub fn token(mut self, token: impl Into<String>, identity: Identity) -> Self {
        self.tokens.push((token.into(), identity));
        self
    }

    /// Whether objects whose owners are gone are deleted, and claims and volumes that are being deleted go once nobody
    /// uses them. The default is yes.
    pub fn garbage_collection(mut self, on: bool) -> Self {
        self.settings.garbage_collection = on;
        self
    }

    /// Whether namespaces that are deleted are emptied and removed. The default is yes.
    pub fn namespace_deletion(mut self, on: bool) -> Self {
        self.settings.namespace_deletion = on;
        self
    }

    /// Whether the server fills in the status of ResourceQuotas, as the controller manager does. The default is yes. If not, quotas
    /// limit nothing until their status is written.
    pub fn quota_usage(mut self, on: bool) -> Self {
        self.settings.quota_usage = on;
        self
    }

    /// Pretends to run workloads: Pods become ready, and all that is made of Pods with them. The default is not to.
    pub fn workloads(mut self, workloads: Workloads) -> Self {
        self.workloads = Some(workloads);
        self
    }

    /// Leaves background work to [`ApiServer::step`]. The default is to do it with the request that calls for it.
    pub fn stepped(mut self) -> Self {
        self.settings.immediate = false;
        self
    }

    /// How many writes are remembered, for watches and lists of the past. The default is 20 000, at most 64 MiB.
    pub fn history(mut self, entries: usize) -> Self {
        self.retention.entries = entries.max(1);
        self
    }

    /// Is told of each request when its answer begins. It is called in the request's way, so it should be quick. The
    /// default is nobody.
    pub fn observe(mut self, see: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer::new(see));
        self
    }

    /// Starts the server.
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
            world: workloads::World::new(self.workloads),
        };
        furnish(&mut Context {
            state: &mut state,
            now: self.clock.now(),
            warnings: Vec::new(),
        });
        let revisions = watch::Sender::new(state.store.revision());
        ApiServer {
            inner: Arc::new(Inner {
                clock: self.clock,
                revisions,
                observer: self.observer,
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

/// Makes the objects that a new server has.
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
        // A panic under the lock is a bug; what it left behind is still a fold of the log.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, revision: u64) {
        self.revisions.send_if_modified(|known| {
            let newer = revision > *known;
            *known = revision.max(*known);
            newer
        });
    }

    /// How long until pretended workloads have something to do; nothing if they wait for nothing.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let due = self.lock().world.next_due()?;
        Some(due.duration_since(self.clock.now()).unwrap_or_default())
    }

    /// Does what is due.
    pub(crate) fn tick(&self) {
        let mut state = self.lock();
        let mut cx = Context {
            state: &mut state,
            now: self.clock.now(),
            warnings: Vec::new(),
        };
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

    /// Finds out who asks, lets faults strike, and answers.
    async fn admit(self: &Arc<Self>, call: &mut Call) -> Result<Response<Body>, ConnectionLost> {
        if let Err(failure) = handler::options::check_timeout(call) {
            return Ok(failed(&failure));
        }
        let identified = {
            let mut state = self.lock();
            let mut cx = Context {
                state: &mut state,
                now: self.clock.now(),
                warnings: Vec::new(),
            };
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
        loop {
            let race = !raced && effects.iter().any(|effect| matches!(effect, Effect::Race));
            raced = true;
            let outcome = self.dispatch(call, race);
            let reply = match outcome {
                Ok(reply) => reply,
                Err(failure) => return failed(&failure),
            };
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

    fn dispatch(&self, call: &Call, race: bool) -> crate::status::Result<Reply> {
        let mut state = self.lock();
        let mut cx = Context {
            state: &mut state,
            now: self.clock.now(),
            warnings: Vec::new(),
        };
        let revision = cx.state.store.revision();
        cx.state.compaction.advance(cx.now, revision);
        background::expiry::expire(&mut cx);
        workloads::wake(&mut cx);
        if race {
            fault::race(&mut cx, call);
        }
        let mut reply = handler::dispatch(&mut cx, call);
        if let Ok(reply) = &mut reply {
            reply.warnings.append(&mut cx.warnings);
        }
        if cx.state.settings.immediate {
            while background::step(&mut cx) {}
        }
        let revision = state.store.revision();
        drop(state);
        self.announce(revision);
        reply
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
        for value in warning::headers(&reply.warnings) {
            response.headers_mut().append(header::WARNING, value);
        }
        response
    }
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
