// SPDX-License-Identifier: Apache-2.0
//! Tests of reconcilers as functions: server state and request in, writes, events and result out.
//!
//! A reconciler can be tested without a controller and without a manager. [`Stand`] wraps a server and records the writes
//! of reconcilers. A [`Case`] is a row of a table: given objects, the request, the expected writes and events in order, and
//! the expected result. The server is any that a [`kube::Client`] can reach, such as the embedded one of
//! `steersman-testing`: nothing is mocked, so a case cannot be wrong about the server.
//!
//! The module is in this crate because the crate of the test servers must not depend on controllers.
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
//!     Case::new("ignores a deleted map").request(ObjectKey::new("web", "gone")),
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
//! 1. The given objects are on the server, with their status, before the reconciler is called, and its reads see them. An
//!    object that is given with a `deletionTimestamp` is being deleted.
//! 2. Every write is recorded in order, also of the raw client, and whether or not it succeeds.
//! 3. Every event of the context's recorder is recorded in order, repetitions included. When a call has ended, its events
//!    are on the server. Events are not in the list of writes: the recorder decides what is written, and when.

mod write;

use std::sync::Arc;

use http::{Request as HttpRequest, Response};
use http_body_util::BodyExt;
use kube::{ResourceExt, client::Body, core::DynamicObject};
use serde::Serialize;
use serde_json::Value;
use steersman_cluster::{Cluster, ConnectError, DeleteOptions, RecordedEvent, ResourceQuery};
use steersman_core::{Action, Mutex, ObjectKey, error_chain};
use tower::service_fn;

pub use self::write::Write;
use self::write::Writes;
pub use crate::object_reconciler::KnownPrimary;
use crate::{AnyReconciler, BoxError, Context, Request, context::STANDALONE};
/// For tests of controllers without a manager, with leadership that the test grants and revokes.
pub use crate::{
    cluster_set::{ClusterRemoval, ClusterSet},
    leadership::LeadershipKeeper,
    run_context::RuntimeContext,
};

/// Harness for table tests of a reconciler: a server, on which each [`Case`] calls the reconciler once.
#[derive(Debug)]
pub struct Stand {
    cluster: Cluster,
    writes: Writes,
    controller: String,
}

/// A row of a table; see the [module](self).
#[derive(Debug)]
#[must_use = "a case does nothing until `check` is called"]
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
    /// An error that contains this text.
    Error(String),
}

/// Outcome of a call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Writes, in order.
    pub writes: Vec<Write>,
    /// Recorded events, in order.
    pub events: Vec<RecordedEvent>,
    /// Result of the reconciler.
    pub result: Result<Action, BoxError>,
}

impl Stand {
    /// Creates a stand on the server of this client, with the user of the client.
    ///
    /// # Errors
    /// When the caller is not in a tokio runtime.
    pub async fn new(client: kube::Client) -> Result<Self, ConnectError> {
        let writes = Writes::default();
        let recorded = writes.clone();
        let service = service_fn(move |request: HttpRequest<Body>| {
            let (client, writes) = (client.clone(), recorded.clone());
            async move { forward(client, &writes, request).await }
        });
        let service = kube::Client::new(service, "default");
        let cluster = Cluster::builder("stand")
            .service(service)
            .field_manager("test")
            .build()
            .await?;
        Ok(Self {
            cluster,
            writes,
            controller: STANDALONE.to_owned(),
        })
    }

    /// Name of the controller that the reconcilers see, which is also the field manager of their writes. Default:
    /// `standalone`.
    #[must_use]
    pub fn controller(mut self, name: impl Into<String>) -> Self {
        self.controller = name.into();
        self
    }

    /// The server, to inspect its objects.
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
        let (_handle, cx) = Context::standalone_recorded(&self.cluster, &self.controller, move |event| {
            let mut events = recorded.lock();
            events.push(event.clone());
        });
        let request = Request::new(self.cluster.name().clone(), request);
        let recorder = cx.recorder().clone();
        let result = reconciler
            .reconcile_any(By::primary().as_ref(), request, cx)
            .await;
        recorder.flush().await;
        let events = std::mem::take(&mut *events.lock());
        Outcome {
            writes: self.writes.take(),
            events,
            result,
        }
    }

    /// Creates an object on the server, with its status.
    ///
    /// # Panics
    /// When the value is not an object, or the server rejects it.
    async fn put(&self, case: &str, given: Value) {
        let object: DynamicObject = serde_json::from_value(given).expect("the given value is an object");
        let types = object
            .types
            .clone()
            .expect("the given object has apiVersion and kind");
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
    /// Creates a case; failures show its name. Default: no objects, no writes, no events, and the action is to await a
    /// change.
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

    /// Adds an object that is created before the call. Several calls add several objects. Objects of earlier cases of the
    /// same stand still exist.
    ///
    /// An object with a `deletionTimestamp` is deleted after its creation, so that the reconciler sees it under deletion.
    /// It needs a finalizer, because the server would otherwise remove it at once. The server sets the timestamp.
    ///
    /// # Panics
    /// When the object cannot be serialized as JSON.
    pub fn given(mut self, object: &impl Serialize) -> Self {
        let value = serde_json::to_value(object).expect("the given object can be serialized as JSON");
        self.given.push(value);
        self
    }

    /// Key for the call of the reconciler. Default: the first given object.
    pub fn request(mut self, key: ObjectKey) -> Self {
        self.request = Some(key);
        self
    }

    /// Expected writes, in order, as [`Write`] shows them. Default: none.
    pub fn writes<W: Into<String>>(mut self, writes: impl IntoIterator<Item = W>) -> Self {
        self.writes = writes.into_iter().map(Into::into).collect();
        self
    }

    /// Expected events, in order, as [`RecordedEvent`] shows them: type and reason. Default: none.
    pub fn events<E: Into<String>>(mut self, events: impl IntoIterator<Item = E>) -> Self {
        self.events = events.into_iter().map(Into::into).collect();
        self
    }

    /// Expected action. Default: await a change.
    pub fn action(mut self, action: Action) -> Self {
        self.expected = Expected::Action(action);
        self
    }

    /// Expects an error that contains this text.
    pub fn fails(mut self, text: impl Into<String>) -> Self {
        self.expected = Expected::Error(text.into());
        self
    }

    /// Creates the given objects, calls the reconciler, and compares. Returns the outcome, for further checks.
    ///
    /// # Panics
    /// When the outcome is not as expected, with the name of the case.
    pub async fn check<By: KnownPrimary>(
        self,
        stand: &Stand,
        reconciler: &impl AnyReconciler<Request, By>,
    ) -> Outcome {
        let name = &self.name;
        let request = self.request.or_else(|| self.given.first().map(key_of));
        let request =
            request.unwrap_or_else(|| panic!("{name}: no request; call `.request(…)` or `.given(…)`"));
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

/// Returns the key of an object.
fn key_of(object: &Value) -> ObjectKey {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    ObjectKey::new(text("namespace"), text("name"))
}
