// SPDX-License-Identifier: Apache-2.0
//! Kinds that a reconciler declares: optional ones, dynamic ones, and all of them on every cluster.

use std::time::Duration;

use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    CustomResource, CustomResourceExt, ResourceExt,
    api::Patch,
    core::{DynamicObject, ObjectMeta, TypeMeta},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_cache::Resource;
use steersman_cluster::{Client, DeleteOptions};
use steersman_core::{Action, ObjectKey};
use steersman_kit::{KindReconciler, NoCleanup, Optional, Work, managed};
use steersman_runtime::{BoxError, Controller};
use steersman_testing::{Fixture, eventually, proxy::Exchange};

use super::support::*;

/// A kind that is installed during the test, and only by it.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "optional.steersman.example",
    version = "v1",
    kind = "Extra",
    namespaced
)]
struct ExtraSpec {
    value: String,
}

struct WithExtra;

impl KindReconciler for WithExtra {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap, Optional<Extra>);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let spec = ExtraSpec {
            value: widget.spec.value.clone(),
        };
        work.child(Cond::Available, Extra::new(&widget.name_any(), spec))
            .await;
        work.child(Cond::Configured, map_of(widget)).await;
        Ok(Action::await_change())
    }
}

async fn uninstall(client: &Client, definition: &ObjectKey) {
    let deleted = client.delete_if_exists::<CustomResourceDefinition>(definition, DeleteOptions::default());
    deleted.await.unwrap();
    eventually("the CRD is removed", async || {
        let found = client.get::<CustomResourceDefinition>(definition).await.unwrap();
        found.is_none().then_some(())
    })
    .await;
}

// R115
#[steersman_testing::test]
async fn parents_are_reconciled_when_an_optional_kind_is_installed(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let definition = ObjectKey::new("", &Extra::crd().name_any());
    uninstall(&client, &definition).await;
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    Controller::of::<Widget>("widgets")
        .add_to(&manager, managed(WithExtra))
        .unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    when_condition(&client, &one, "Available", ("Unknown", "NotInstalled")).await;
    when_condition(&client, &one, "Configured", ("True", "Configured")).await;
    // An absent kind costs nothing: no request names it but discovery.
    let named = |path: &str| path.contains("/extras");
    assert!(
        !proxy
            .exchanges()
            .iter()
            .any(|one| one.is_write() && named(&one.path))
    );
    fixture.install(&Extra::crd()).await;
    when_condition(&client, &one, "Available", ("True", "Available")).await;
    // It is watched from now on.
    client
        .delete::<Extra>(&one, DeleteOptions::default())
        .await
        .unwrap();
    eventually("the child is created again", async || {
        client.get::<Extra>(&one).await.unwrap()
    })
    .await;
    uninstall(&client, &definition).await;
    when_condition(&client, &one, "Available", ("Unknown", "NotInstalled")).await;
}

/// The resource of a kind that exists in the group of the test.
fn gadgets(fixture: &Fixture) -> Resource {
    Resource::new(fixture.group(), "v1", "Gadget", "gadgets")
}

async fn install_gadgets(fixture: &Fixture) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{}", fixture.group())},
        "spec": {
            "group": fixture.group(), "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    });
    fixture.install(&object(crd)).await;
}

fn gadget(widget: &Widget, resource: &Resource) -> DynamicObject {
    DynamicObject {
        types: Some(TypeMeta {
            api_version: resource.api_version(),
            kind: resource.kind().to_owned(),
        }),
        metadata: ObjectMeta {
            name: widget.metadata.name.clone(),
            ..ObjectMeta::default()
        },
        data: json!({"spec": {"value": widget.spec.value}}),
    }
}

fn with_gadget(resource: &Resource) -> Scripted {
    let resource = resource.clone();
    scripted(move |widget, work| {
        let child = gadget(widget, &resource);
        let resource = resource.clone();
        Box::pin(async move {
            let live = work.dynamic_child(Cond::Available, &resource, child).await;
            work.status_mut().note = live
                .map(|live| live.data["spec"]["value"].to_string())
                .unwrap_or_default();
            work.child(Cond::Configured, map_of(widget)).await;
            Ok(Action::await_change())
        })
    })
}

// R115
#[steersman_testing::test]
async fn a_dynamic_kind_can_be_a_child(fixture: Fixture) {
    install_gadgets(&fixture).await;
    fixture.install(&Widget::crd()).await;
    let cluster = cluster_builder(&fixture, "default").build().await.unwrap();
    let client = cluster.live();
    let manager = manager(cluster).await;
    let resource = gadgets(&fixture);
    let reconciler = managed(with_gadget(&resource)).owns_dynamic(resource.clone());
    Controller::of::<Widget>("widgets")
        .add_to(&manager, reconciler)
        .unwrap();
    let _running = run(manager);
    let one = key(&fixture, "one");
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let found = when_condition(&client, &one, "Ready", ("True", "AllConditionsMet")).await;
    assert_eq!(found.status.as_ref().unwrap().note, "\"1\"");
    let live = client.of(&resource);
    let owner = live.get_required(&one).await.unwrap().owner_references()[0].clone();
    assert_eq!((owner.controller, Some(owner.uid)), (Some(true), found.uid()));
    let drift = Patch::Merge(json!({"spec": {"value": "changed", "other": 1}}));
    client
        .field_manager("other")
        .of(&resource)
        .patch(&one, &drift)
        .await
        .unwrap();
    eventually("the field is restored", async || {
        let found = live.get_required(&one).await.unwrap();
        (found.data["spec"] == json!({"value": "1", "other": 1})).then_some(())
    })
    .await;
    live.delete(&one, DeleteOptions::default()).await.unwrap();
    eventually("the child is created again", async || {
        live.get(&one).await.unwrap()
    })
    .await;
}

// R115
#[steersman_testing::test]
async fn a_dynamic_kind_that_is_not_declared_is_an_error_with_the_remedy(fixture: Fixture) {
    install_gadgets(&fixture).await;
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let resource = gadgets(&fixture);
    let outcome = stand.call(one.clone(), &managed(with_gadget(&resource))).await;
    assert!(outcome.result.is_err());
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let message = &found
        .status
        .as_ref()
        .unwrap()
        .conditions
        .named("Available")
        .unwrap()
        .message;
    assert!(message.contains("owns_dynamic"), "{message}");
    assert_eq!(condition(&found, "Configured").0, "True");
    assert!(client.of(&resource).get(&one).await.unwrap().is_none());
}

// R115, R72
#[steersman_testing::test]
async fn writes_are_sent_to_the_cluster_of_the_request(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let (home, away) = (fixture.proxy().await, fixture.proxy().await);
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    // The second cluster is another namespace of the same server.
    let other = format!("{}-away", fixture.namespace());
    let namespace = json!({"metadata": {"name": other}});
    client
        .create(&object::<k8s_openapi::api::core::v1::Namespace>(namespace))
        .await
        .unwrap();
    let scope = steersman_cache::Scope::all().namespace(&other);
    let away_cluster = steersman_cluster::Cluster::builder("away")
        .config(away.endpoint().config(fixture.admin()).unwrap())
        .cache(|cache| cache.defaults(scope, Default::default()))
        .build()
        .await
        .unwrap();
    let manager = manager(cluster_through(&fixture, &home).await).await;
    manager.add_cluster(away_cluster).unwrap();
    Controller::of::<Widget>("widgets")
        .on_every_cluster()
        .add_to(&manager, managed(configured()))
        .unwrap();
    let _running = run(manager);
    let mut there = widget(&fixture, "one", "away");
    there.metadata.namespace = Some(other.clone());
    client.create(&widget(&fixture, "one", "home")).await.unwrap();
    client.create(&there).await.unwrap();
    for namespace in [fixture.namespace(), &other] {
        let key = ObjectKey::new(namespace, "one");
        when_condition(&client, &key, "Ready", ("True", "AllConditionsMet")).await;
        // Its children are watched there.
        client
            .delete::<ConfigMap>(&key, DeleteOptions::default())
            .await
            .unwrap();
        eventually("the child is created again", async || {
            client.get::<ConfigMap>(&key).await.unwrap()
        })
        .await;
    }
    for (proxy, namespace) in [(&home, fixture.namespace()), (&away, &*other)] {
        let writes: Vec<_> = proxy
            .exchanges()
            .into_iter()
            .filter(|one| one.is_write())
            .collect();
        let part = format!("/namespaces/{namespace}/");
        assert!(
            !writes.is_empty() && writes.iter().all(|one| one.path.contains(&part)),
            "{writes:?}"
        );
    }
}

// R103: the state about a cluster ends with it
#[steersman_testing::test]
async fn nothing_is_remembered_about_the_children_in_a_removed_cluster(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    // The default cluster has another namespace of the same server, without objects.
    let empty = steersman_cache::Scope::all().namespace(format!("{}-empty", fixture.namespace()));
    let home = cluster_builder(&fixture, "default").cache(|cache| cache.defaults(empty, Default::default()));
    let manager = manager(home.build().await.unwrap()).await;
    Controller::of::<Widget>("widgets")
        .on_every_cluster()
        .add_to(&manager, managed(configured()))
        .unwrap();
    let running = run(manager);
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    // A cluster that is removed and added again: the next reconcile knows nothing of the child, and applies it.
    for round in 0..3 {
        let proxy = fixture.proxy().await;
        let config = proxy.endpoint().config(fixture.admin()).unwrap();
        let away = cluster_builder(&fixture, "away")
            .config(config)
            .build()
            .await
            .unwrap();
        let name = away.name().clone();
        running.manager.add_cluster(away).unwrap();
        eventually(&format!("the apply of round {round}"), async || {
            let is_apply = |one: &Exchange| {
                one.method == "PATCH" && one.path.ends_with("/configmaps/one") && one.ended.is_some()
            };
            proxy.exchanges().iter().any(is_apply).then_some(())
        })
        .await;
        let grace = Duration::from_secs(30);
        running.manager.remove_cluster(&name, grace).await.unwrap();
    }
}
