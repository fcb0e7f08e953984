// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of the cache: its context, objects, and recording handlers.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, GroupVersionKind},
    discovery::ApiResource,
};
use serde_json::json;
use steersman_cache::{
    Cache, CacheBuilder, Event, EventHandler, Informer, InformerContext, InformerOptions, ReflectorOptions,
    Resource, Scope,
};
use steersman_core::{Clock, MonotonicTime, Random, Spawner, TestClock, TokioClock};
use steersman_testing::{FaultProxy, Fixture, proxy::Exchange};
use tokio::sync::watch;

/// In real time.
pub fn context(client: Client) -> InformerContext {
    context_at(client, Arc::new(TokioClock::new()))
}

pub fn context_at(client: Client, clock: Arc<dyn Clock>) -> InformerContext {
    InformerContext::new(client, clock, Arc::new(Random::from_seed(1)), Spawner::current())
}

/// Over a connection as a cache has it.
pub fn through(fixture: &Fixture, proxy: &FaultProxy) -> InformerContext {
    let config = proxy.endpoint().config(fixture.admin()).unwrap();
    context(steersman_cache::client(&config).unwrap())
}

pub fn config_maps() -> Resource {
    Resource::of::<ConfigMap>()
}

/// The namespace of the test.
pub fn here(fixture: &Fixture) -> Scope {
    Scope::all().namespace(fixture.namespace())
}

/// An informer of the config maps of the test.
pub fn informer(fixture: &Fixture, context: &InformerContext) -> Informer {
    informer_with(fixture, context, ReflectorOptions::default())
}

pub fn informer_with(fixture: &Fixture, context: &InformerContext, options: ReflectorOptions) -> Informer {
    let options = InformerOptions::default().reflector(options);
    Informer::start(context, config_maps(), here(fixture), options)
}

/// A cache of the namespace of the test. Unused informers end at once.
pub fn cache(fixture: &Fixture, context: InformerContext) -> CacheBuilder {
    Cache::builder(context)
        .defaults(here(fixture), InformerOptions::default())
        .linger(Duration::ZERO)
}

/// The ConfigMaps of the test, read and written without the cache.
pub struct Maps(pub Api<ConfigMap>);

impl Maps {
    pub fn of(fixture: &Fixture) -> Self {
        Self(Api::namespaced(fixture.client(), fixture.namespace()))
    }

    pub async fn create(&self, name: &str) -> ConfigMap {
        self.create_with(name, json!({})).await
    }

    pub async fn create_all(&self, names: &[&str]) {
        for name in names {
            self.create(name).await;
        }
    }

    pub async fn create_with(&self, name: &str, labels: serde_json::Value) -> ConfigMap {
        let map = json!({"metadata": {"name": name, "labels": labels}, "data": {"value": "first"}});
        let map = serde_json::from_value(map).unwrap();
        self.0.create(&PostParams::default(), &map).await.unwrap()
    }

    pub async fn set(&self, name: &str, value: &str) -> ConfigMap {
        let patch = Patch::Merge(json!({"data": {"value": value}}));
        self.0.patch(name, &PatchParams::default(), &patch).await.unwrap()
    }

    pub async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

pub fn value(map: &ConfigMap) -> &str {
    &map.data.as_ref().unwrap()["value"]
}

/// Remembers what it hears.
#[derive(Clone, Debug, Default)]
pub struct Heard(watch::Sender<Vec<Event>>);

impl Heard {
    pub fn handler(&self) -> impl EventHandler + use<> {
        let heard = self.0.clone();
        move |event: &Event| heard.send_modify(|all| all.push(event.clone()))
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.borrow().clone()
    }

    /// Everything so far, in words.
    pub fn said(&self) -> Vec<String> {
        self.0.borrow().iter().map(say).collect()
    }

    /// Everything as soon as the condition holds.
    pub async fn until(&self, mut condition: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
        let mut heard = self.0.subscribe();
        heard.wait_for(|all| condition(all)).await.unwrap().clone()
    }

    /// Everything in words as soon as there are so many.
    pub async fn count(&self, count: usize) -> Vec<String> {
        self.until(|all| all.len() >= count)
            .await
            .iter()
            .map(say)
            .collect()
    }
}

/// Recorded events.
pub fn say(event: &Event) -> String {
    let word = match event {
        Event::Added { initial: true, .. } => "initial",
        Event::Added { .. } => "added",
        Event::Updated { .. } => "updated",
        Event::Deleted {
            final_state_known: true,
            ..
        } => "deleted",
        Event::Deleted { .. } => "vanished",
        Event::Resynced { .. } => "resynced",
        _ => "unknown",
    };
    format!("{word} {}", event.object().name())
}

pub fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

/// The names in the store.
pub fn names(informer: &Informer) -> Vec<String> {
    let keys = informer.store().keys(&steersman_cache::Query::new());
    sorted(keys.iter().map(|key| key.name().to_owned()).collect())
}

/// The value of a parameter of a request.
pub fn parameter(exchange: &Exchange, name: &str) -> Option<String> {
    form_urlencoded::parse(exchange.query.as_bytes())
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

/// Reports whether a request is a list, streamed or not.
pub fn is_list(exchange: &Exchange) -> bool {
    exchange.method == "GET"
        && (!exchange.is_watch() || parameter(exchange, "sendInitialEvents").as_deref() == Some("true"))
}

/// The requests for a collection.
pub fn requests(proxy: &FaultProxy, plural: &str) -> Vec<Exchange> {
    let is_of = |exchange: &Exchange| exchange.path.ends_with(&format!("/{plural}"));
    proxy.exchanges().into_iter().filter(is_of).collect()
}

/// Defines a kind of the test's group. Whether the server serves it yet is another matter.
pub async fn define(fixture: &Fixture, kind: &str) -> Resource {
    let (group, plural) = (fixture.group(), format!("{}s", kind.to_lowercase()));
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    Resource::new(group, "v1", kind, &plural)
}

/// Objects of a kind that was defined, as soon as the server serves it.
pub async fn served(fixture: &Fixture, resource: &Resource) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(resource.group(), resource.version(), resource.kind());
    let kind = ApiResource::from_gvk_with_plural(&kind, resource.plural());
    let api = Api::namespaced_with(fixture.client(), fixture.namespace(), &kind);
    while api.list(&Default::default()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    api
}

pub fn custom(resource: &Resource, name: &str) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": resource.api_version(), "kind": resource.kind(), "metadata": {"name": name},
    }))
    .unwrap()
}

/// Waits until there is a deadline up to `latest`, and returns it.
pub async fn next_deadline(clock: &TestClock, latest: Duration) -> MonotonicTime {
    let latest = clock.now() + latest;
    loop {
        if let Some(deadline) = clock.next_deadline().filter(|deadline| *deadline <= latest) {
            return deadline;
        }
        tokio::task::yield_now().await;
    }
}
