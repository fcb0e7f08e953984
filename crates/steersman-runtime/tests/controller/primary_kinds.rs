// SPDX-License-Identifier: Apache-2.0
//! Object reconcilers of dynamic kinds and of metadata.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::support;
use std::sync::Arc;

use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::core::{DynamicObject, PartialObjectMeta};
use serde_json::json;
use steersman_cache::{Query, Resource};
use steersman_cluster::{DeleteOptions, EventType, ObjectExt};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{BoxError, Context, Controller, ObjectReconciler, dynamic, metadata};
use steersman_testing::{Fixture, eventually};
use support::{GRACE, Stage, config_map, delete, key, object};
use tokio::sync::watch;

const FINALIZER: &str = "steersman.example/clean";

#[derive(Clone, Default)]
struct Recorded(Arc<watch::Sender<Vec<String>>>);

impl Recorded {
    fn note(&self, what: &str, name: &str) {
        self.0.send_modify(|all| all.push(format!("{what} {name}")));
    }

    async fn has(&self, what: &str) {
        let mut all = self.0.subscribe();
        all.wait_for(|all| all.iter().any(|one| one == what))
            .await
            .unwrap();
    }
}

/// Adds its finalizer to each object, and removes it when the object is deleted.
#[derive(Clone, Default)]
struct Cleaner(Recorded);

impl ObjectReconciler<DynamicObject> for Cleaner {
    type Error = BoxError;

    async fn reconcile(&self, object: Arc<DynamicObject>, cx: Context) -> Result<Action, BoxError> {
        let (client, key) = (cx.client().of(&Resource::of::<ConfigMap>()), object.key());
        if object.is_being_deleted() {
            self.0.note("cleaned", key.name());
            client.remove_finalizer(&object, FINALIZER).await?;
        } else {
            let value = object.data["data"]["value"].as_str().unwrap_or_default();
            client.add_finalizer(&object, FINALIZER).await?;
            cx.recorder().about_dynamic(&object, client.resource()).event(
                EventType::Normal,
                "Seen",
                "Reconcile",
                value,
            );
            self.0.note("seen", &format!("{} {value}", key.name()));
        }
        Ok(Action::await_change())
    }

    async fn on_deleted(&self, key: ObjectKey, _cx: Context) -> Result<Action, BoxError> {
        self.0.note("gone", key.name());
        Ok(Action::await_change())
    }

    fn finalizer(&self) -> Option<&str> {
        Some(FINALIZER)
    }
}

// R100
#[steersman_testing::test]
async fn an_object_reconciler_of_a_dynamic_kind_has_finalizers_and_events(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let cleaner = Cleaner::default();
    let maps = dynamic(Resource::new("", "v1", "ConfigMap", "configmaps"));
    let controller = Controller::of_kind("maps", maps).build(&stage.cluster, cleaner.clone());
    let running = stage.run(&controller);
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "7")).await.unwrap();
    cleaner.0.has("seen a 7").await;
    eventually("its event is recorded", async || {
        let events = client
            .list::<Event>(&Query::new().namespace(fixture.namespace()))
            .await
            .unwrap();
        let mut seen = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Seen"));
        let regarding = seen.next()?.regarding.clone().unwrap();
        assert_eq!(
            (regarding.kind.as_deref(), regarding.name.as_deref()),
            (Some("ConfigMap"), Some("a"))
        );
        Some(())
    })
    .await;
    let begun = client
        .delete::<ConfigMap>(&key(&fixture, "a"), DeleteOptions::default())
        .await;
    begun.unwrap();
    cleaner.0.has("cleaned a").await;
    cleaner.0.has("gone a").await;
    running.stop(GRACE).await.unwrap();
}

/// Remembers labels.
#[derive(Clone, Default)]
struct Labels(Recorded);

impl ObjectReconciler<PartialObjectMeta<ConfigMap>> for Labels {
    type Error = BoxError;

    async fn reconcile(
        &self,
        map: Arc<PartialObjectMeta<ConfigMap>>,
        _cx: Context,
    ) -> Result<Action, BoxError> {
        let labels = map.metadata.labels.clone().unwrap_or_default();
        self.0
            .note(map.key().name(), labels.get("tier").map_or("", String::as_str));
        Ok(Action::await_change())
    }
}

// R142
#[steersman_testing::test]
async fn an_object_reconciler_of_metadata_fetches_nothing_else(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let labels = Labels::default();
    let controller =
        Controller::of_kind("maps", metadata::<ConfigMap>()).build(&stage.cluster, labels.clone());
    let running = stage.run(&controller);
    let labelled: ConfigMap = object(json!({
        "metadata": {"name": "a", "namespace": fixture.namespace(), "labels": {"tier": "front"}},
    }));
    stage.live().create(&labelled).await.unwrap();
    labels.0.has("a front").await;
    let informers = stage.cluster.cache().informers();
    let scopes: Vec<String> = informers.iter().map(|one| one.scope().to_string()).collect();
    assert_eq!(scopes.len(), 1, "{scopes:?}");
    assert!(scopes[0].contains("metadata"), "{scopes:?}");
    delete::<ConfigMap>(&stage.live(), &key(&fixture, "a")).await;
    running.stop(GRACE).await.unwrap();
}

/// Applies a label to each map.
struct Labeller;

impl ObjectReconciler<ConfigMap> for Labeller {
    type Error = BoxError;

    async fn reconcile(&self, map: Arc<ConfigMap>, cx: Context) -> Result<Action, BoxError> {
        let label = json!({
            "metadata": {"name": map.metadata.name, "namespace": map.metadata.namespace, "labels": {"seen": "true"}},
        });
        cx.client().apply(&object::<ConfigMap>(label)).await?;
        Ok(Action::await_change())
    }
}

#[steersman_testing::test]
async fn writes_as_a_field_manager_that_is_named_after_the_controller(fixture: Fixture) {
    let stage = Stage::new(&fixture).await;
    let client = stage.live();
    client.create(&config_map(&fixture, "a", "1")).await.unwrap();
    for (controller, expected) in [
        (Controller::of::<ConfigMap>("maps"), "maps"),
        (
            Controller::of::<ConfigMap>("other").field_manager("example.com/labels"),
            "example.com/labels",
        ),
    ] {
        let controller = controller.build(&stage.cluster, Labeller);
        let running = stage.run(&controller);
        eventually("the label is applied", async || {
            let map = client
                .get_required::<ConfigMap>(&key(&fixture, "a"))
                .await
                .unwrap();
            let mut managers = map.metadata.managed_fields.iter().flatten();
            let is_applied = |operation: &Option<String>| operation.as_deref() == Some("Apply");
            managers
                .find(|one| one.manager.as_deref() == Some(expected) && is_applied(&one.operation))
                .map(|_| ())
        })
        .await;
        running.stop(GRACE).await.unwrap();
    }
}
