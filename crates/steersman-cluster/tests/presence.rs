// SPDX-License-Identifier: Apache-2.0
//! Kinds that are installed and uninstalled, as clients of a cluster see them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    core::DynamicObject,
};
use serde_json::json;
use steersman_cache::{Query, ReadError, Resource};
use steersman_cluster::{Client, Error, POLL_EVERY};
use steersman_testing::{Fixture, proxy::Exchange};
use support::{cluster, key, object};

fn widgets(fixture: &Fixture) -> Resource {
    Resource::new(fixture.group(), "v1", "Widget", "widgets")
}

fn definition_name(fixture: &Fixture) -> String {
    format!("widgets.{}", fixture.group())
}

async fn install(fixture: &Fixture) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition: CustomResourceDefinition = object(json!({
        "metadata": {"name": definition_name(fixture)},
        "spec": {
            "group": fixture.group(),
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }));
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
}

async fn uninstall(fixture: &Fixture) {
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    let name = definition_name(fixture);
    definitions.delete(&name, &DeleteParams::default()).await.unwrap();
}

/// Applies a widget, as soon as the server takes it.
async fn apply(fixture: &Fixture, client: &Client) {
    let widget: DynamicObject = object(json!({
        "apiVersion": format!("{}/v1", fixture.group()), "kind": "Widget",
        "metadata": {"name": "one", "namespace": fixture.namespace()},
    }));
    while let Err(error) = client.of(&widgets(fixture)).apply(&widget).await {
        assert!(error.is_absent() || error.is_not_found(), "{error:?}");
        tokio::task::yield_now().await;
    }
}

fn of_widgets(exchanges: &[Exchange]) -> usize {
    let is_widgets = |one: &&Exchange| one.path.ends_with("/widgets");
    exchanges.iter().filter(is_widgets).count()
}

#[track_caller]
fn assert_absent<T>(read: Result<T, Error>, resource: &Resource) {
    let error = read.map(|_| ()).unwrap_err();
    assert!(error.is_absent(), "{error:?}");
    let Error::Read { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(
        matches!(&**source, ReadError::Absent { resource: found } if found == resource),
        "{error:?}"
    );
}

// R2, R17
#[steersman_testing::test]
async fn a_cached_read_of_an_absent_kind_leaves_no_informer_behind(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    // Informers that nobody holds are kept for a while, but not this one.
    let cluster = support::builder(&fixture, &proxy)
        .cache(|cache| cache.linger(std::time::Duration::from_secs(3600)))
        .build()
        .await
        .unwrap();
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let here = Query::new().namespace(fixture.namespace());
    for reads in 1..=3 {
        let read = client.of(&widgets).get(&key(&fixture, "one")).await;
        assert_absent(read, &widgets);
        assert!(cluster.cache().informers().is_empty());
        assert_eq!(of_widgets(&proxy.exchanges()), 2 * reads - 1, "each asks once");
        assert_absent(client.of(&widgets).list(&here).await, &widgets);
        assert!(cluster.cache().informers().is_empty());
    }
    install(&fixture).await;
    apply(&fixture, &client).await;
    let found = client.of(&widgets).list(&here).await.unwrap();
    assert_eq!(found.len(), 1);
}

// R2, R17
#[steersman_testing::test]
async fn guarantee_7_a_cached_read_of_a_kind_that_is_known_to_be_absent_sends_nothing(fixture: Fixture) {
    let proxy = fixture.proxy().await;
    let cluster = cluster(&fixture, &proxy).await;
    let (client, widgets) = (cluster.client(), widgets(&fixture));
    let mut presence = cluster.presence(&widgets, POLL_EVERY);
    presence.when(|sighting| sighting.is_absent()).await;
    for _ in 0..100 {
        let read = client.of(&widgets).get(&key(&fixture, "one")).await;
        assert_absent(read, &widgets);
    }
    assert_eq!(of_widgets(&proxy.exchanges()), 0);
    assert!(cluster.cache().informers().is_empty());

    install(&fixture).await;
    apply(&fixture, &client).await;
    presence.when(|sighting| sighting.is_present()).await;
    let read = client.of(&widgets).get(&key(&fixture, "one")).await;
    assert!(read.unwrap().is_some());

    uninstall(&fixture).await;
    presence.when(|sighting| sighting.is_absent()).await;
    // What the reads hold goes with the first that is told so, at the latest when the server ends its watch.
    let is_absent = async || match client.of(&widgets).get(&key(&fixture, "one")).await {
        Err(error) => error.is_absent(),
        Ok(_) => false,
    };
    while !is_absent().await {
        tokio::task::yield_now().await;
    }
    assert!(cluster.cache().informers().is_empty());
    let before = of_widgets(&proxy.exchanges());
    assert!(is_absent().await);
    assert_eq!(of_widgets(&proxy.exchanges()), before);
}
