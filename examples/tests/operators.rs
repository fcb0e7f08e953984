// SPDX-License-Identifier: Apache-2.0
//! The smaller examples that work on one cluster do what they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use serde_json::{Value, json};
use steersman::{
    cache::Resource,
    cluster::DeleteOptions,
    k8s_openapi::{
        api::{
            core::v1::{ConfigMap, Namespace, ResourceQuota, Service},
            events::v1::Event,
        },
        apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    },
    kube::{CustomResourceExt, ResourceExt, api::Patch},
    prelude::*,
    runtime::RunnableStatus,
};
use steersman_examples::{
    dns::{self, DnsApi, DnsRecord, DnsRecordSpec, DnsService},
    guards, handlers, tags,
    tenants::{self, Tenant},
};
use steersman_testing::{FaultProxy, Fixture};
use support::{cluster, eventually, run};

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

async fn manager(fixture: &Fixture, proxy: &FaultProxy) -> Manager {
    let cluster = cluster(proxy.endpoint(), fixture.admin(), "default", fixture.namespace());
    Manager::builder()
        .cluster(cluster.build().await.unwrap())
        .build()
        .await
        .unwrap()
}

// R145
#[steersman_testing::test]
async fn each_handler_reports_its_own_condition(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    handlers::add(&manager).unwrap();
    let running = run(&manager);
    let service = |name: &str, ttl: &str| -> Service {
        object(json!({
            "metadata": {
                "name": name,
                "namespace": fixture.namespace(),
                "labels": {handlers::HANDLED: "yes"},
                "annotations": {handlers::TTL: ttl},
            },
            "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
        }))
    };
    // One that does not expire, one that is expired, and one whose lifetime cannot be parsed.
    for (name, ttl) in [("stays", "86400"), ("goes", "0"), ("odd", "soon")] {
        client.create(&service(name, ttl)).await.unwrap();
    }
    let key = |name| ObjectKey::new(fixture.namespace(), name);
    for (name, expiring) in [("stays", "True"), ("odd", "False")] {
        eventually(async || {
            let service = client.get_required::<Service>(&key(name)).await.unwrap();
            let is = |kind: &str, status: &str| {
                let conditions = service.status.iter().flat_map(|status| &status.conditions);
                let name = format!("examples.steersman.dev/{kind}");
                let mut found = conditions.flatten().filter(|one| one.type_ == name);
                found.any(|one| one.status == status)
            };
            service.labels().get(handlers::PORTS).map(String::as_str) == Some("2")
                && is("Labelled", "True")
                && is("Expiring", expiring)
        })
        .await;
    }
    eventually(async || client.get::<Service>(&key("goes")).await.unwrap().is_none()).await;
    running.stop().await;
}

// R7, R100
#[steersman_testing::test]
async fn a_dynamic_kind_is_guarded_once_its_crd_is_installed(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    let resource = Resource::new(fixture.group(), "v1", "Widget", "widgets");
    let controller = guards::add(&manager, resource.clone()).unwrap();
    let running = run(&manager);
    let is_dormant = |status: &RunnableStatus| matches!(status, RunnableStatus::Dormant { .. });
    let statuses = manager.statuses();
    statuses
        .when(|all| all.get(controller.name()).is_some_and(is_dormant))
        .await;
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": format!("widgets.{}", fixture.group())},
        "spec": {
            "group": fixture.group(),
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }));
    client.create(&definition).await.unwrap();
    statuses
        .when(|all| all.get(controller.name()) == Some(&RunnableStatus::Ready))
        .await;
    let widgets = client.of(&resource);
    let widget = object(json!({
        "apiVersion": format!("{}/v1", fixture.group()),
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": fixture.namespace(), "annotations": {guards::LOCKED: ""}},
    }));
    let key = widgets.create(&widget).await.unwrap().key();
    let has_finalizer = async || {
        let widget = widgets.get(&key).await.unwrap();
        widget.is_some_and(|widget| widget.has_finalizer(guards::FINALIZER))
    };
    eventually(has_finalizer).await;
    widgets.delete(&key, DeleteOptions::default()).await.unwrap();
    eventually(async || {
        let query = Query::new().namespace(fixture.namespace());
        let events = client.list::<Event>(&query).await.unwrap();
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("Locked"))
    })
    .await;
    assert!(has_finalizer().await, "it is locked");
    let unlock = Patch::Merge(json!({"metadata": {"annotations": {guards::LOCKED: null}}}));
    widgets.patch(&key, &unlock).await.unwrap();
    eventually(async || widgets.get(&key).await.unwrap().is_none()).await;
    running.stop().await;
}

// R58
#[steersman_testing::test]
async fn any_kind_can_be_tagged(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    let cluster = manager.cluster().unwrap();
    assert!(tags::find(&cluster, "", "Widget").await.is_err());
    let maps = tags::find(&cluster, "", "ConfigMap").await.unwrap();
    tags::add(&manager, &maps, "front").unwrap();
    let running = run(&manager);
    let map = |name: &str, labels: Value| -> ConfigMap {
        object(json!({"metadata": {"name": name, "namespace": fixture.namespace(), "labels": labels}}))
    };
    client.create(&map("a", json!({}))).await.unwrap();
    client
        .create(&map("b", json!({tags::LABEL: "back"})))
        .await
        .unwrap();
    let team = async |name: &str| {
        let key = ObjectKey::new(fixture.namespace(), name);
        let map = client.get_required::<ConfigMap>(&key).await.unwrap();
        map.labels().get(tags::LABEL).cloned()
    };
    eventually(async || team("a").await.as_deref() == Some("front")).await;
    assert_eq!(team("b").await.as_deref(), Some("back"));
    running.stop().await;
    // A kind outside of namespaces is found as well.
    let namespaces = tags::find(&cluster, "", "Namespace").await.unwrap();
    assert_eq!(namespaces, Resource::of::<Namespace>());
}

// R138
#[steersman_testing::test]
async fn a_tenant_has_its_namespaces_and_loses_those_that_it_does_not_name(fixture: Fixture) {
    fixture.install(&Tenant::crd()).await;
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let cluster = Cluster::builder("default").field_manager("test").config(config);
    let manager = Manager::builder()
        .cluster(cluster.build().await.unwrap())
        .build()
        .await
        .unwrap();
    let client = manager.client().unwrap().live();
    tenants::add(&manager).unwrap();
    let running = run(&manager);
    let name = format!("t-{}", fixture.namespace());
    let (key, namespace) = (ObjectKey::new("", &name), |suffix: &str| {
        format!("{name}-{suffix}")
    });
    let spec = json!({"namespaces": ["dev", "prod"], "admins": ["ada"], "quota": {"pods": "10"}});
    client
        .create(&object::<Tenant>(
            json!({"metadata": {"name": name}, "spec": spec}),
        ))
        .await
        .unwrap();
    let is_ready = async || {
        let tenant = client.get_required::<Tenant>(&key).await.unwrap();
        let ready = tenant
            .status
            .as_ref()
            .and_then(|status| status.conditions.named("Ready"));
        let observed = tenant
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        observed == tenant.metadata.generation && ready.is_some_and(|ready| ready.status == "True")
    };
    let pods = async |suffix: &str| {
        let quota = client
            .get::<ResourceQuota>(&ObjectKey::new(&namespace(suffix), "tenant"))
            .await
            .unwrap();
        let hard = quota?.spec.clone()?.hard?;
        Some(hard["pods"].0.clone())
    };
    eventually(is_ready).await;
    assert_eq!(
        (pods("dev").await.as_deref(), pods("prod").await.as_deref()),
        (Some("10"), Some("10"))
    );

    // A quota that someone changes is restored.
    let more = Patch::Merge(json!({"spec": {"hard": {"pods": "1000"}}}));
    let quota = ObjectKey::new(&namespace("dev"), "tenant");
    client.patch::<ResourceQuota>(&quota, &more).await.unwrap();
    eventually(async || pods("dev").await.as_deref() == Some("10")).await;

    // A namespace that is not named any more is deleted, and its content.
    let is_deleted = async |suffix: &str| {
        let found = client
            .get::<Namespace>(&ObjectKey::new("", &namespace(suffix)))
            .await
            .unwrap();
        found.is_none_or(|found| found.is_being_deleted()) && pods(suffix).await.is_none()
    };
    let fewer = Patch::Merge(json!({"spec": {"namespaces": ["prod"]}}));
    client.patch::<Tenant>(&key, &fewer).await.unwrap();
    eventually(async || is_deleted("dev").await).await;
    eventually(is_ready).await;
    assert!(!is_deleted("prod").await);
    client
        .delete::<Tenant>(&key, DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || client.get::<Tenant>(&key).await.unwrap().is_none()).await;
    assert!(is_deleted("prod").await);
    running.stop().await;
}

#[steersman_testing::test]
async fn a_dns_record_has_one_entry_until_it_is_deleted(fixture: Fixture) {
    fixture.install(&DnsRecord::crd()).await;
    let service = DnsService::start(([127, 0, 0, 1], 0).into()).unwrap();
    let proxy = fixture.proxy().await;
    let manager = manager(&fixture, &proxy).await;
    let client = manager.client().unwrap().live();
    dns::add(&manager, DnsApi::new(service.address().to_string())).unwrap();
    let running = run(&manager);
    let spec = |address: &str| json!({"host": "one.example.com", "address": address});
    let record: DnsRecord = object(json!({
        "metadata": {"name": "one", "namespace": fixture.namespace()}, "spec": spec("10.0.0.1"),
        "apiVersion": "dns.example.com/v1", "kind": "DnsRecord",
    }));
    client.create(&record).await.unwrap();
    let key = ObjectKey::new(fixture.namespace(), "one");
    let entries =
        || -> Vec<DnsRecordSpec> { service.entries().into_iter().map(|entry| entry.spec).collect() };
    eventually(async || {
        let record = client.get_required::<DnsRecord>(&key).await.unwrap();
        let conditions = record.status.as_ref().map(|status| status.conditions.clone());
        let ready = conditions.and_then(|conditions| conditions.named("Ready").cloned());
        ready.is_some_and(|ready| ready.status == "True")
    })
    .await;
    assert_eq!(entries(), [object::<DnsRecordSpec>(spec("10.0.0.1"))]);
    let moved = Patch::Merge(json!({"spec": {"address": "10.0.0.2"}}));
    client.patch::<DnsRecord>(&key, &moved).await.unwrap();
    eventually(async || entries() == [object::<DnsRecordSpec>(spec("10.0.0.2"))]).await;
    client
        .delete::<DnsRecord>(&key, DeleteOptions::default())
        .await
        .unwrap();
    eventually(async || client.get::<DnsRecord>(&key).await.unwrap().is_none()).await;
    assert_eq!(entries(), []);
    running.stop().await;
}
