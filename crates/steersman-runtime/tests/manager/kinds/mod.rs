// SPDX-License-Identifier: Apache-2.0
//! Kinds that tests define and remove.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use steersman_cache::Resource;
use steersman_cluster::Client;
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{BoxError, Context, Controller, Manager, Reconciler, Request, dynamic};
use steersman_testing::{Fixture, proxy::Exchange};
use tokio::sync::watch;

/// A kind of the test's group.
#[derive(Clone)]
pub struct TestKind {
    pub resource: Resource,
    definitions: Api<CustomResourceDefinition>,
    namespace: String,
}

impl TestKind {
    /// It is not installed yet.
    pub fn new(fixture: &Fixture, kind: &str) -> Self {
        Self::at(fixture, &fixture.client(), fixture.namespace(), kind)
    }

    /// The same on another server.
    pub fn at(fixture: &Fixture, admin: &kube::Client, namespace: &str, kind: &str) -> Self {
        let plural = format!("{}s", kind.to_lowercase());
        Self {
            resource: Resource::new(fixture.group(), "v1", kind, &plural),
            definitions: Api::all(admin.clone()),
            namespace: namespace.to_owned(),
        }
    }

    pub fn definition_name(&self) -> String {
        format!("{}.{}", self.resource.plural(), self.resource.group())
    }

    pub async fn install(&self) {
        self.install_as("Namespaced").await;
    }

    /// Installs it with this scope.
    pub async fn install_as(&self, scope: &str) {
        self.install_with(
            scope,
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        )
        .await;
    }

    /// Installs it with this scope and schema.
    pub async fn install_with(&self, scope: &str, schema: Value) {
        let kind = self.resource.kind();
        let schema = json!({"openAPIV3Schema": schema});
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": {"name": self.definition_name()},
            "spec": {
                "group": self.resource.group(),
                "scope": scope,
                "names": {"kind": kind, "plural": self.resource.plural(), "singular": kind.to_lowercase()},
                "versions": [
                    {"name": "v1", "served": true, "storage": false, "schema": schema},
                    {"name": "v2", "served": true, "storage": true, "schema": schema},
                ],
            },
        }))
        .unwrap();
        self.definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
    }

    /// True if version `v1` is served.
    pub async fn serve(&self, served: bool) {
        let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": served}]);
        let patch: Patch<Value> = Patch::Json(serde_json::from_value(patch).unwrap());
        self.definitions
            .patch(&self.definition_name(), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Changes the definition.
    pub async fn change(&self, change: Value) {
        self.definitions
            .patch(
                &self.definition_name(),
                &PatchParams::default(),
                &Patch::Merge(change),
            )
            .await
            .unwrap();
    }

    /// Deletes it, and waits for the end of the deletion.
    pub async fn uninstall(&self) {
        self.begin_uninstall().await;
        self.gone().await;
    }

    /// Waits until it is deleted.
    pub async fn gone(&self) {
        while self
            .definitions
            .get_opt(&self.definition_name())
            .await
            .unwrap()
            .is_some()
        {
            tokio::task::yield_now().await;
        }
    }

    pub async fn begin_uninstall(&self) {
        self.definitions
            .delete(&self.definition_name(), &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Applies an object, as soon as the server takes it.
    pub async fn apply(&self, client: &Client, name: &str) {
        while let Err(error) = client.of(&self.resource).apply(&self.object(name)).await {
            assert!(is_early(&error), "{error:?}");
            tokio::task::yield_now().await;
        }
    }

    pub fn object(&self, name: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": self.resource.api_version(),
            "kind": self.resource.kind(),
            "metadata": {"name": name, "namespace": self.namespace},
        }))
        .unwrap()
    }

    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }
}

/// Returns true if a server does not accept objects yet: it has no established CRD, or still the former one.
pub fn is_early(error: &steersman_cluster::Error) -> bool {
    error.is_absent() || error.is_not_found() || error.to_string().contains("is terminating")
}

/// Returns true for a watch of objects that is not only a check of the server's readiness.
pub fn is_watch(exchange: &Exchange, plural: &str) -> bool {
    let is_question = exchange.query.contains("resourceVersion=1&");
    exchange.path.ends_with(&format!("/{plural}")) && exchange.is_watch() && !is_question
}

/// Names of objects, and their uids where they were there.
pub type Seen = Vec<(String, Option<String>)>;

/// A reconciler that remembers the uids of the objects that it saw.
#[derive(Clone)]
pub struct Uids {
    resource: Resource,
    seen: Arc<watch::Sender<Seen>>,
}

impl Uids {
    pub fn of(kind: &TestKind) -> Self {
        Self {
            resource: kind.resource.clone(),
            seen: Arc::new(watch::Sender::new(Vec::new())),
        }
    }

    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    pub fn clear(&self) {
        self.seen.send_modify(Vec::clear);
    }

    pub fn note(&self, name: &str, uid: Option<String>) {
        self.seen.send_modify(|seen| seen.push((name.to_owned(), uid)));
    }

    /// Waits until an object of this name was seen, and gives its uid.
    pub async fn saw(&self, name: &str) -> String {
        let mut seen = self.seen.subscribe();
        let find = |seen: &Seen| {
            seen.iter()
                .rev()
                .find(|(found, uid)| found == name && uid.is_some())
                .and_then(|(_, uid)| uid.clone())
        };
        let found = seen.wait_for(|seen| find(seen).is_some()).await.unwrap();
        find(&found).unwrap()
    }
}

/// Runs a controller of a kind while that is installed, and remembers what it sees.
pub fn conditional(manager: &Manager, name: &str, kind: &TestKind) -> Uids {
    let seen = Uids::of(kind);
    Controller::of_kind(name, dynamic(kind.resource.clone()))
        .when_installed()
        .add_to(manager, seen.clone())
        .unwrap();
    seen
}

impl Reconciler for Uids {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let object = cx.client().of(&self.resource).get(request.key()).await?;
        let uid = object.and_then(|object| object.metadata.uid.clone());
        self.note(request.name(), uid);
        Ok(Action::await_change())
    }
}
