// SPDX-License-Identifier: Apache-2.0
//! Reconcilers as the functions they are: a state of the server, a request, and what follows.
//!
//! A reconciler needs no controller and no manager to be tested. [`Stand`] is a server to which it is let, and remembers
//! what it writes; a [`Case`] is a line of a table: what is there, what is asked for, which writes and events follow in
//! which order, and what comes back. The server is whatever answers a [`kube::Client`], such as the embedded one of
//! `steersman-testing`: nothing is mocked, so that a case cannot be wrong about the server.
//!
//! The module is here and not with the test servers, because those must not know controllers.
//!
//! ```no_run
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use steersman_runtime::{Context, Request, reconcile_fn, testing::{Case, Stand}};
//! use steersman_core::{Action, ObjectKey};
//!
//! # async fn example(client: kube::Client, map: ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
//! let reconciler = reconcile_fn(async |request: Request, cx: Context| {
//!     // …
//!     Ok::<_, steersman_cluster::Error>(Action::await_change())
//! });
//! let stand = Stand::new(client).await?;
//! let table = [
//!     Case::new("what is gone is none of our business").request(ObjectKey::new("web", "gone")),
//!     Case::new("a map without a label gets one")
//!         .given(&map)
//!         .request(ObjectKey::new("web", "front"))
//!         .writes(["patch configmaps web/front"])
//!         .events(["Normal Labelled"]),
//! ];
//! for case in table {
//!     case.check(&stand, &reconciler).await;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! 1. What is given is on the server, with its status, before the reconciler is called, and is read by it. An object that is
//!    given with a `deletionTimestamp` is being deleted.
//! 2. Every write is remembered in its order, also those of a raw client, and whether or not it succeeds.
//! 3. Every event that the recorder of the context is given is remembered in its order, repetitions included. When a call
//!    has ended, its events are with the server. They are no writes: what is written of them, and when, is up to the
//!    recorder.

mod write;

use std::sync::{Arc, Mutex, PoisonError};

use http::{Request as HttpRequest, Response};
use http_body_util::BodyExt;
use kube::{ResourceExt, client::Body, core::DynamicObject};
use serde::Serialize;
use serde_json::Value;
use steersman_cluster::{Cluster, ConnectError, DeleteOptions, RecordedEvent, ResourceQuery};
use steersman_core::{Action, ObjectKey, error_chain};
use tower::service_fn;

pub use self::write::Write;
use self::write::Writes;
use crate::{AnyReconciler, BoxError, Context, KnownPrimary, Request};
/// For tests of controllers without a manager, with leadership that the test grants and revokes.
pub use crate::{
    cluster_set::{ClusterRemoval, ClusterSet},
    leadership::LeadershipKeeper,
    run_context::RuntimeContext,
};

/// A server to which reconcilers are let one at a time.
#[derive(Debug)]
pub struct Stand {
    cluster: Cluster,
    writes: Writes,
}

/// A line of a table; see the [module](self).
#[derive(Debug)]
#[must_use = "a case says something when it is checked"]
pub struct Case {
    name: String,
    given: Vec<Value>,
    request: Option<ObjectKey>,
    writes: Vec<String>,
    events: Vec<String>,
    expected: Expected,
}

#[derive(Debug)]
enum Expected {
    Action(Action),
    /// An error in which this is said.
    Error(String),
}

/// What followed from a call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What was written, in order.
    pub writes: Vec<Write>,
    /// The events that were recorded, in order.
    pub events: Vec<RecordedEvent>,
    /// What came back.
    pub result: Result<Action, BoxError>,
}

impl Stand {
    /// On the server that this client speaks to, as its user.
    ///
    /// # Errors
    /// When there is no runtime here.
    pub async fn new(client: kube::Client) -> Result<Self, ConnectError> {
        let writes = Writes::default();
        let recorded = writes.clone();
        let service = service_fn(move |request: HttpRequest<Body>| {
            let (client, writes) = (client.clone(), recorded.clone());
            async move { forward(client, &writes, request).await }
        });
        let service = kube::Client::new(service, "default");
        let cluster = Cluster::builder("stand").service(service).build().await?;
        Ok(Self { cluster, writes })
    }

    /// The server, for a look at what has become of it.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Calls a reconciler, as a controller would.
    pub async fn call<By: KnownPrimary>(
        &self,
        request: ObjectKey,
        reconciler: &impl AnyReconciler<Request, By>,
    ) -> Outcome {
        self.writes.take();
        let events = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&events);
        let (_handle, cx) = Context::standalone_recorded(&self.cluster, move |event| {
            let mut events = recorded.lock().unwrap_or_else(PoisonError::into_inner);
            events.push(event.clone());
        });
        let request = Request::new(self.cluster.name().clone(), request);
        let recorder = cx.recorder().clone();
        let result = reconciler
            .reconcile_any(By::primary().as_ref(), request, cx)
            .await;
        recorder.flush().await;
        let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
        Outcome {
            writes: self.writes.take(),
            events,
            result,
        }
    }

    /// Puts an object on the server, with its status.
    ///
    /// # Panics
    /// When this is no object, or the server does not take it.
    async fn put(&self, case: &str, given: Value) {
        let object: DynamicObject = serde_json::from_value(given).expect("what is given is an object");
        let types = object.types.clone().expect("what is given says its kind");
        let (group, version) = types
            .api_version
            .rsplit_once('/')
            .unwrap_or(("", &types.api_version));
        let ask = ResourceQuery::kind(group, &types.kind).version(version);
        let mapping = self.cluster.mapper().resolve(&ask).await;
        let mapping = mapping.unwrap_or_else(|error| panic!("{case}: {error}: is its CRD installed?"));
        let client = self.cluster.live().of(mapping.resource());
        let made = client.create(&object).await;
        let mut made = made.unwrap_or_else(|error| panic!("{case}: {error}"));
        let status = object
            .data
            .get("status")
            .filter(|_| mapping.has_subresource("status"));
        if let Some(status) = status {
            made.data["status"] = status.clone();
            let written = client.update_status(&made).await;
            written.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
        if object.metadata.deletion_timestamp.is_some() {
            assert!(
                !made.finalizers().is_empty(),
                "{case}: `{}` has a deletionTimestamp and no finalizer, so no server keeps it",
                made.name_any()
            );
            let key = ObjectKey::new(&made.namespace().unwrap_or_default(), &made.name_any());
            let deleted = client.delete(&key, DeleteOptions::default()).await;
            deleted.unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}

async fn forward(
    client: kube::Client,
    writes: &Writes,
    request: HttpRequest<Body>,
) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    writes.note(&parts, &bytes);
    let request = HttpRequest::from_parts(parts, Body::from(bytes.to_vec()));
    Ok(client.send(request).await?)
}

impl Case {
    /// A case by the name under which it fails. Nothing is there, nothing is written or recorded, and the reconciler
    /// awaits a change.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            given: Vec::new(),
            request: None,
            writes: Vec::new(),
            events: Vec::new(),
            expected: Expected::Action(Action::await_change()),
        }
    }

    /// An object that is created before. Said several times, all of them. What earlier cases of the same stand have left is
    /// there, too.
    ///
    /// An object with a `deletionTimestamp` is deleted once it is created, so that the reconciler sees it under deletion. It needs
    /// a finalizer, since the server would remove it at once without one. The timestamp is the server's.
    ///
    /// # Panics
    /// When it cannot be written as JSON.
    pub fn given(mut self, object: &impl Serialize) -> Self {
        let value = serde_json::to_value(object).expect("what is given can be written as JSON");
        self.given.push(value);
        self
    }

    /// What the reconciler is called with. Default: the first object that is given.
    pub fn request(mut self, key: ObjectKey) -> Self {
        self.request = Some(key);
        self
    }

    /// The writes that follow, in order, as [`Write`] shows them. Default: none.
    pub fn writes<W: Into<String>>(mut self, writes: impl IntoIterator<Item = W>) -> Self {
        self.writes = writes.into_iter().map(Into::into).collect();
        self
    }

    /// The events that are recorded, in order, as [`RecordedEvent`] shows them: type and reason. Default: none.
    pub fn events<E: Into<String>>(mut self, events: impl IntoIterator<Item = E>) -> Self {
        self.events = events.into_iter().map(Into::into).collect();
        self
    }

    /// What the reconciler wants next. Default: to await a change.
    pub fn action(mut self, action: Action) -> Self {
        self.expected = Expected::Action(action);
        self
    }

    /// It fails with an error that says this.
    pub fn fails(mut self, text: impl Into<String>) -> Self {
        self.expected = Expected::Error(text.into());
        self
    }

    /// Puts what is given on the server, calls the reconciler, and compares. What it wrote comes back, for a closer look.
    ///
    /// # Panics
    /// When it is not as expected, with the name of the case.
    pub async fn check<By: KnownPrimary>(
        self,
        stand: &Stand,
        reconciler: &impl AnyReconciler<Request, By>,
    ) -> Outcome {
        let name = &self.name;
        let request = self.request.or_else(|| self.given.first().map(key_of));
        let request = request.unwrap_or_else(|| panic!("{name}: say what is asked for"));
        for given in self.given {
            stand.put(name, given).await;
        }
        let outcome = stand.call(request, reconciler).await;
        match (&self.expected, &outcome.result) {
            (Expected::Action(expected), Ok(action)) => assert_eq!(action, expected, "{name}"),
            (Expected::Action(_), Err(error)) => panic!("{name}: it failed: {}", error_chain(&**error)),
            (Expected::Error(text), Ok(action)) => panic!("{name}: no error with {text:?}, but {action:?}"),
            (Expected::Error(text), Err(error)) => {
                let said = error_chain(&**error);
                assert!(said.contains(text), "{name}: {said:?} does not say {text:?}");
            }
        }
        let written: Vec<String> = outcome.writes.iter().map(ToString::to_string).collect();
        assert_eq!(written, self.writes, "{name}: what was written");
        let recorded: Vec<String> = outcome.events.iter().map(ToString::to_string).collect();
        assert_eq!(recorded, self.events, "{name}: the events");
        outcome
    }
}

/// The key of an object.
fn key_of(object: &Value) -> ObjectKey {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    ObjectKey::new(text("namespace"), text("name"))
}
