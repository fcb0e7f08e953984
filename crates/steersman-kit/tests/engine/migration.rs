// SPDX-License-Identifier: Apache-2.0
//! The storage migrator: a CRD with two versions whose storage version is switched.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use steersman_cluster::Cluster;
use steersman_core::Action;
use steersman_endpoints::Exposition;
use steersman_kit::StorageMigrator;
use steersman_runtime::{BoxError, Context, ObjectReconciler};
use steersman_testing::{
    FaultProxy, Fixture, eventually,
    proxy::{Fault, Matching},
};

use super::support::*;

/// Schemas of the two versions.
#[derive(Clone, Copy, PartialEq)]
enum Schemas {
    /// Both have all fields.
    Same,
    /// `size` is only in v1alpha1, `replicas` only in v1beta1, `color` in both.
    Different,
}

/// A CRD in the group of the test, and its objects.
struct Gadgets<'f> {
    fixture: &'f Fixture,
    schemas: Schemas,
}

impl Gadgets<'_> {
    fn name(&self) -> String {
        format!("gadgets.{}", self.fixture.group())
    }

    fn definition(&self, versions: &[&str], storage: &str) -> CustomResourceDefinition {
        let (integer, string) = (json!({"type": "integer"}), json!({"type": "string"}));
        let version = |name: &&str| {
            let spec = match (self.schemas, *name) {
                (Schemas::Same, _) => json!({"size": integer, "replicas": integer, "color": string}),
                (_, "v1alpha1") => json!({"size": integer, "color": string}),
                _ => json!({"replicas": integer, "color": string}),
            };
            let spec = json!({"type": "object", "properties": spec});
            let status = json!({"type": "object", "properties": {"note": {"type": "string"}}});
            let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
            json!({
                "name": name, "served": true, "storage": *name == storage,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}},
            })
        };
        let versions: Vec<Value> = versions.iter().map(version).collect();
        object(json!({
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.fixture.group(), "scope": "Namespaced", "versions": versions,
                "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            },
        }))
    }

    /// Installs the CRD with this storage version, and waits until the server stores objects at it.
    async fn install(&self, versions: &[&str], storage: &str) {
        let hash = async || {
            let path = format!("/apis/{}/{}", self.fixture.group(), versions[0]);
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            let list: Value = self.fixture.client().request(request).await.ok()?;
            let resources = list["resources"].as_array()?.iter();
            let hash = resources.map(|it| it["storageVersionHash"].as_str().unwrap_or_default());
            Some(hash.collect::<String>())
        };
        let before = hash().await;
        let definitions: Api<CustomResourceDefinition> = Api::all(self.fixture.client());
        let stored = definitions.get_opt(&self.name()).await.unwrap();
        let stored = stored.and_then(|crd| crd.spec.versions.into_iter().find(|it| it.storage));
        let is_switch = stored.is_some_and(|stored| stored.name != storage);
        self.fixture.install(&self.definition(versions, storage)).await;
        eventually("the storage version", async || {
            let now = hash().await?;
            (!now.is_empty() && (!is_switch || Some(now) != before)).then_some(())
        })
        .await;
    }

    fn resource(&self, version: &str) -> ApiResource {
        let gvk = GroupVersionKind::gvk(self.fixture.group(), version, "Gadget");
        ApiResource::from_gvk_with_plural(&gvk, "gadgets")
    }

    fn objects(&self, version: &str) -> Api<DynamicObject> {
        let (client, namespace) = (self.fixture.client(), self.fixture.namespace());
        Api::namespaced_with(client, namespace, &self.resource(version))
    }

    async fn create(&self, version: &str, name: &str, spec: Value) {
        let mut gadget = DynamicObject::new(name, &self.resource(version));
        gadget.data = json!({"spec": spec});
        let objects = self.objects(version);
        objects.create(&PostParams::default(), &gadget).await.unwrap();
    }

    /// Ten objects that are stored at v1alpha1, and then the other storage version.
    async fn switched(&self) {
        self.install(&["v1alpha1", "v1beta1"], "v1alpha1").await;
        for number in 0..10 {
            let spec = json!({"size": number, "color": "red"});
            self.create("v1alpha1", &format!("g{number}"), spec).await;
        }
        self.install(&["v1alpha1", "v1beta1"], "v1beta1").await;
        assert_eq!(self.stored_versions().await, ["v1alpha1", "v1beta1"]);
    }

    async fn crd(&self) -> CustomResourceDefinition {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.fixture.client());
        definitions.get(&self.name()).await.unwrap()
    }

    async fn stored_versions(&self) -> Vec<String> {
        self.crd()
            .await
            .status
            .unwrap()
            .stored_versions
            .unwrap_or_default()
    }

    /// Generation and content of each object at a version, without the resource version.
    async fn contents(&self, version: &str) -> BTreeMap<String, (Option<i64>, Value)> {
        let objects = self.objects(version);
        // A server that has just taken over a CRD answers 429 for a moment.
        let list = eventually("a list of all objects", async || {
            objects.list(&ListParams::default()).await.ok()
        })
        .await;
        let content = |it: DynamicObject| (it.name_any(), (it.metadata.generation, it.data));
        list.items.into_iter().map(content).collect()
    }

    /// Removes the old version from the CRD. The server cannot read an object that is still stored at that version.
    async fn drop_old_version(&self) -> BTreeMap<String, (Option<i64>, Value)> {
        self.fixture
            .install(&self.definition(&["v1beta1"], "v1beta1"))
            .await;
        eventually("the end of the old version", async || {
            let gone = self.objects("v1alpha1").list(&ListParams::default()).await;
            gone.is_err().then_some(())
        })
        .await;
        self.contents("v1beta1").await
    }

    fn migrator(&self) -> StorageMigrator {
        StorageMigrator::named(self.name())
            .settle(Duration::ZERO)
            .without_server()
    }

    /// Calls the migrator once, as a controller would.
    async fn step(&self, cluster: &Cluster, migrator: &StorageMigrator) -> Result<Action, BoxError> {
        let (_handle, cx) = Context::standalone(cluster);
        let crd = Arc::new(self.crd().await);
        migrator.reconcile(crd, cx).await
    }

    /// Calls the migrator until it waits for a change. Each error is a crash, after which another process continues.
    async fn migrate(&self, cluster: &Cluster, mut migrator: StorageMigrator) -> usize {
        let mut crashes = 0;
        loop {
            match self.step(cluster, &migrator).await {
                Ok(action) if action == Action::await_change() => return crashes,
                Ok(action) => assert!(
                    action != Action::requeue_after(Duration::from_secs(600)),
                    "blocked"
                ),
                Err(_) => {
                    crashes += 1;
                    assert!(crashes < 100, "the migration does not end");
                    migrator = self.migrator().rate(3);
                }
            }
        }
    }
}

fn gadgets(fixture: &Fixture, schemas: Schemas) -> Gadgets<'_> {
    Gadgets { fixture, schemas }
}

/// Number of rewrites of each object.
fn rewrites(proxy: &FaultProxy) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let patches = proxy.exchanges().into_iter();
    for patch in patches.filter(|it| it.method == "PATCH" && it.path.contains("/gadgets/")) {
        let name = patch.path.rsplit('/').next().unwrap_or_default().to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

// R107
#[steersman_testing::test]
async fn guarantee_1_and_2_all_objects_are_rewritten_unchanged_before_the_old_version_is_cleared(
    fixture: Fixture,
) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let before = [
        gadgets.contents("v1alpha1").await,
        gadgets.contents("v1beta1").await,
    ];
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let migrator = gadgets.migrator().rate(4);
    // Guarantee 5: four objects each second.
    for rewritten in [4, 8] {
        let action = gadgets.step(&cluster, &migrator).await.unwrap();
        assert_eq!(action, Action::requeue_after(Duration::from_secs(1)));
        assert_eq!(rewrites(&proxy).len(), rewritten);
        assert_eq!(gadgets.stored_versions().await.len(), 2);
    }
    assert_eq!(gadgets.migrate(&cluster, migrator).await, 0);
    assert_eq!(gadgets.stored_versions().await, ["v1beta1"]);
    assert!(rewrites(&proxy).values().all(|times| *times == 1));
    let after = [
        gadgets.contents("v1alpha1").await,
        gadgets.contents("v1beta1").await,
    ];
    assert_eq!(after, before);
    assert_eq!(gadgets.drop_old_version().await, before[1]);
}

/// Injects a fault into the first attempt of every request of a migration.
fn every_request_once(proxy: &FaultProxy, fault: &Fault) -> Vec<steersman_testing::proxy::Injected> {
    let crd = "/customresourcedefinitions/";
    let mut all = vec![
        Matching::method("PATCH").path("/status").first(1),
        Matching::method("PATCH").path(crd).first(1),
        Matching::method("GET").path(crd).first(1),
        // Two lists: the beginning, and the first page.
        Matching::reads().path("/gadgets").query("limit=1").first(1),
        Matching::reads().path("/gadgets").query("limit=500").first(1),
    ];
    all.extend((0..10).map(|number| {
        let path = format!("/gadgets/g{number}");
        Matching::method("PATCH").path(path).first(1)
    }));
    all.into_iter()
        .map(|matching| proxy.inject(matching, fault.clone()))
        .collect()
}

// R107
#[steersman_testing::test]
async fn guarantee_1_and_4_a_crash_at_any_request_loses_and_skips_no_object(fixture: Fixture) {
    let faults = [
        Fault::drop_response(),
        Fault::answer(409),
        Fault::answer_retry_after(429, 0),
        Fault::answer(503),
    ];
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let before = gadgets.contents("v1beta1").await;
    for (round, fault) in faults.into_iter().enumerate() {
        if round > 0 {
            // Stores all objects at the old version again.
            gadgets.install(&["v1alpha1", "v1beta1"], "v1alpha1").await;
            for name in before.keys() {
                let touch = json!({"metadata": {"labels": {"round": round.to_string()}}});
                let (objects, params) = (gadgets.objects("v1alpha1"), PatchParams::default());
                objects.patch(name, &params, &Patch::Merge(touch)).await.unwrap();
            }
            gadgets.install(&["v1alpha1", "v1beta1"], "v1beta1").await;
        }
        let proxy = fixture.proxy().await;
        let cluster = cluster_through(&fixture, &proxy).await;
        let injected = every_request_once(&proxy, &fault);
        gadgets.migrate(&cluster, gadgets.migrator().rate(3)).await;
        let hits: usize = injected.iter().map(|fault| fault.hits()).sum();
        assert_eq!(hits, injected.len(), "{fault:?}");
        assert_eq!(gadgets.stored_versions().await, ["v1beta1"], "{fault:?}");
        let touched: Vec<String> = rewrites(&proxy).into_keys().collect();
        assert_eq!(touched.len(), 10, "{fault:?}: {touched:?}");
        assert_eq!(gadgets.contents("v1beta1").await, before, "{fault:?}");
    }
    assert_eq!(gadgets.drop_old_version().await, before);
}

// R107
#[steersman_testing::test]
async fn guarantee_4_a_second_process_skips_objects_that_were_rewritten(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let first = gadgets.migrator().rate(6);
    let _ = gadgets.step(&cluster, &first).await.unwrap();
    gadgets.migrate(&cluster, gadgets.migrator()).await;
    assert_eq!(gadgets.stored_versions().await, ["v1beta1"]);
    let counts: Vec<usize> = rewrites(&proxy).into_values().collect();
    assert_eq!(counts, [1; 10]);
}

// R107
#[steersman_testing::test]
async fn guarantee_1_objects_that_change_during_a_migration_are_safe(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let migrator = gadgets.migrator().rate(2);
    let _ = gadgets.step(&cluster, &migrator).await.unwrap();
    // The page is listed. Of the objects that it has left, one is deleted, one replaced and one changed; two are new.
    let objects = gadgets.objects("v1alpha1");
    for name in ["g5", "g6"] {
        objects.delete(name, &DeleteParams::default()).await.unwrap();
    }
    gadgets.create("v1beta1", "g6", json!({"replicas": 6})).await;
    let grow = Patch::Merge(json!({"spec": {"size": 70}}));
    objects.patch("g7", &PatchParams::default(), &grow).await.unwrap();
    gadgets.create("v1alpha1", "new-a", json!({"size": 1})).await;
    gadgets.create("v1beta1", "new-b", json!({"replicas": 1})).await;
    let before = gadgets.contents("v1beta1").await;
    assert_eq!(gadgets.migrate(&cluster, migrator).await, 0);
    assert_eq!(gadgets.stored_versions().await, ["v1beta1"]);
    let after = gadgets.drop_old_version().await;
    assert_eq!(after, before);
    assert_eq!(after.len(), 11);
    assert_eq!(after["g7"].1["spec"]["size"], 70);
}

// R107
#[steersman_testing::test]
async fn guarantee_1_another_change_of_the_crd_keeps_the_stored_versions(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let migrator = gadgets.migrator();
    let old = Arc::new(gadgets.crd().await);
    gadgets.install(&["v1alpha1", "v1beta1"], "v1alpha1").await;
    // The migrator still sees the former definition: it rewrites everything, and must not clear anything.
    let (_handle, cx) = Context::standalone(&cluster);
    let action = migrator.reconcile(old, cx).await.unwrap();
    assert_eq!(action, Action::await_change());
    assert_eq!(gadgets.stored_versions().await, ["v1alpha1", "v1beta1"]);
    // Now it sees the new one.
    gadgets.migrate(&cluster, migrator).await;
    assert_eq!(gadgets.stored_versions().await, ["v1alpha1"]);
}

// R107
#[steersman_testing::test]
async fn guarantee_3_without_a_webhook_no_field_of_an_old_version_is_lost(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Different);
    gadgets.switched().await;
    gadgets
        .create("v1beta1", "new", json!({"replicas": 3, "color": "blue"}))
        .await;
    let before = [
        gadgets.contents("v1alpha1").await,
        gadgets.contents("v1beta1").await,
    ];
    // Reading at the new version prunes the fields of the old one.
    assert_eq!(before[1]["g3"].1["spec"], json!({"color": "red"}));
    assert_eq!(before[0]["g3"].1["spec"], json!({"color": "red", "size": 3}));
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let migrator = gadgets.migrator();
    let later = Action::requeue_after(Duration::from_secs(600));
    assert_eq!(gadgets.step(&cluster, &migrator).await.unwrap(), later);
    assert_eq!(gadgets.stored_versions().await.len(), 2);
    assert_eq!(rewrites(&proxy), BTreeMap::from([("new".to_owned(), 1)]));
    let after = [
        gadgets.contents("v1alpha1").await,
        gadgets.contents("v1beta1").await,
    ];
    assert_eq!(after, before);
    // Once the storage version has the field too, the objects are rewritten.
    let gadgets = Gadgets {
        schemas: Schemas::Same,
        ..gadgets
    };
    gadgets
        .fixture
        .install(&gadgets.definition(&["v1alpha1", "v1beta1"], "v1beta1"))
        .await;
    eventually("the schema", async || {
        let shown = gadgets.contents("v1beta1").await;
        (shown["g3"].1["spec"]["size"] == 3).then_some(())
    })
    .await;
    assert_eq!(gadgets.migrate(&cluster, migrator).await, 0);
    let after = gadgets.drop_old_version().await;
    assert_eq!(after["g3"].1["spec"], json!({"color": "red", "size": 3}));
    assert_eq!(after["new"].1["spec"], json!({"color": "blue", "replicas": 3}));
}

// R107: why the manual says that the storage version stays the old one while there is no conversion webhook
#[steersman_testing::test]
async fn without_a_webhook_any_write_removes_the_fields_that_the_storage_version_does_not_have(
    fixture: Fixture,
) {
    let gadgets = gadgets(&fixture, Schemas::Different);
    gadgets.switched().await;
    let objects = gadgets.objects("v1alpha1");
    let note = Patch::Merge(json!({"status": {"note": "seen"}}));
    let written = objects.patch_status("g3", &PatchParams::default(), &note).await;
    written.unwrap();
    let after = gadgets.contents("v1alpha1").await;
    let expected = json!({"spec": {"color": "red"}, "status": {"note": "seen"}});
    assert_eq!(after["g3"].1, expected);
    assert_eq!(after["g4"].1["spec"], json!({"color": "red", "size": 4}));
}

// R107
#[steersman_testing::test]
async fn guarantee_6_the_server_migrates_the_objects_if_it_can(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let migrator = StorageMigrator::named(gadgets.name()).settle(Duration::ZERO);
    let wait = Action::requeue_after(Duration::from_secs(1));
    assert_eq!(gadgets.step(&cluster, &migrator).await.unwrap(), wait);
    let gvk = GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "storageversionmigrations");
    let migrations: Api<DynamicObject> = Api::all_with(fixture.client(), &resource);
    let ours = async || {
        let all = migrations.list(&ListParams::default()).await.unwrap().items;
        let is_ours = |it: &DynamicObject| it.data["spec"]["resource"]["group"] == fixture.group();
        all.into_iter().find(is_ours)
    };
    let migration = ours().await.unwrap();
    // The controller of the server accepts it, and then completes it.
    let condition = |name: &str| {
        json!({"type": name, "status": "True", "reason": "Test", "message": "",
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    for (conditions, ended) in [(["Running"].as_slice(), false), (&["Running", "Succeeded"], true)] {
        let conditions: Vec<Value> = conditions.iter().map(|name| condition(name)).collect();
        let status = json!({"status": {"resourceVersion": "1", "conditions": conditions}});
        let (name, params) = (migration.name_any(), PatchParams::default());
        let written = migrations
            .patch_status(&name, &params, &Patch::Merge(status))
            .await;
        written.unwrap();
        let action = gadgets.step(&cluster, &migrator).await.unwrap();
        assert_eq!(action, if ended { Action::await_change() } else { wait });
        assert_eq!(gadgets.stored_versions().await.len(), if ended { 1 } else { 2 });
    }
    assert!(ours().await.is_none(), "the finished migration is deleted");
    assert_eq!(rewrites(&proxy), BTreeMap::new());
}

// R107
#[steersman_testing::test]
async fn guarantee_6_a_forbidden_storage_version_migration_is_replaced(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let cluster = cluster_through(&fixture, &proxy).await;
    let forbidden = proxy.inject(
        Matching::any().path("/storageversionmigrations"),
        Fault::answer(403),
    );
    let migrator = StorageMigrator::named(gadgets.name()).settle(Duration::ZERO);
    gadgets.migrate(&cluster, migrator).await;
    assert_eq!(forbidden.hits(), 1);
    assert_eq!(gadgets.stored_versions().await, ["v1beta1"]);
    assert_eq!(rewrites(&proxy).len(), 10);
}

// R107
#[steersman_testing::test]
async fn guarantee_3_objects_that_the_server_rejects_keep_the_stored_versions(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.switched().await;
    let proxy = fixture.proxy().await;
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    let rejected = Matching::method("PATCH").path("/gadgets/g4");
    let _rejected = proxy.inject(rejected, Fault::answer(422));
    gadgets.migrator().add_to(&manager).unwrap();
    let running = run(manager);
    let crd = gadgets.name();
    let metric = |name: &str, more: &str| {
        let text = running.manager.metrics().encode(Exposition::Text);
        let start = format!("steersman_storage_migration_{name}{{cluster=\"default\",crd=\"{crd}\"{more}}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map(str::to_owned)
    };
    eventually("all objects are processed", async || {
        let rewritten = metric("objects_total", ",result=\"rewritten\"").as_deref() == Some("9");
        let blocked = metric("objects_total", ",result=\"blocked\"").as_deref() == Some("1");
        (rewritten && blocked).then_some(())
    })
    .await;
    assert_eq!(metric("old_versions", "").as_deref(), Some("1"));
    assert_eq!(gadgets.stored_versions().await.len(), 2);
}

// R107: a leader-elected runnable of the manager
#[steersman_testing::test]
async fn a_manager_migrates_when_the_storage_version_changes(fixture: Fixture) {
    let gadgets = gadgets(&fixture, Schemas::Same);
    gadgets.install(&["v1alpha1", "v1beta1"], "v1alpha1").await;
    gadgets.create("v1alpha1", "one", json!({"size": 1})).await;
    let proxy = fixture.proxy().await;
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    // The delay lets the server take over the storage version.
    let migrator = gadgets.migrator().settle(Duration::from_secs(3));
    migrator.add_to(&manager).unwrap();
    let _running = run(manager);
    gadgets.install(&["v1alpha1", "v1beta1"], "v1beta1").await;
    eventually("the stored versions", async || {
        (gadgets.stored_versions().await == ["v1beta1"]).then_some(())
    })
    .await;
    let after = gadgets.drop_old_version().await;
    assert_eq!(after["one"].1["spec"], json!({"size": 1}));
}
