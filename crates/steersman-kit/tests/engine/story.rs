// SPDX-License-Identifier: Apache-2.0
//! R109 from beginning to end, with a controller that runs.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_kit::managed;
use steersman_runtime::Controller;
use steersman_testing::{
    Fixture, eventually,
    proxy::{Cut, Fault, Matching},
};

use super::support::*;

// R100, R104, R106, R108, R109, R110, R111, R112, R176
#[steersman_testing::test]
async fn a_foreign_child_from_its_discovery_to_its_deletion(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");

    // Another team has a Deployment of the name, with a status.
    let mut foreign = deployment_of(&widget(&fixture, "one", "1"));
    foreign.metadata.namespace = Some(fixture.namespace().to_owned());
    client.create(&foreign).await.unwrap();
    let status = json!({"status": {"replicas": 7, "readyReplicas": 7, "observedGeneration": 1}});
    let foreign = client
        .patch_status::<Deployment>(&one, &Patch::Merge(status))
        .await
        .unwrap();

    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    Controller::of::<Widget>("widgets")
        .add_to(&manager, managed(deployed()))
        .unwrap();
    let _running = run(manager);
    client.create(&widget(&fixture, "one", "1")).await.unwrap();

    // The condition names it, the next child is created, and the foreign object is not touched.
    let found = when_condition(&client, &one, "Available", ("False", "NotOwned")).await;
    assert_eq!(condition(&found, "Ready").0, "False");
    when_condition(&client, &one, "Configured", ("True", "Configured")).await;
    assert!(client.get::<ConfigMap>(&one).await.unwrap().is_some());

    // A change of the foreign object reconciles the parent, which still does not touch it.
    let labels = Patch::Merge(json!({"metadata": {"labels": {"team": "other"}}}));
    let changed = client.patch::<Deployment>(&one, &labels).await.unwrap();
    let reads = eventually("the parent looks at the changed object", async || {
        let all = proxy.exchanges();
        let reads = all.iter().filter(|one| {
            one.method == "GET" && one.path.ends_with("/deployments/one") && one.ended.is_some()
        });
        Some(reads.count()).filter(|reads| *reads >= 2)
    });
    reads.await;
    let now = client.get_required::<Deployment>(&one).await.unwrap();
    assert_eq!(
        (now.uid(), now.resource_version()),
        (foreign.uid(), changed.resource_version())
    );
    assert_eq!(
        client
            .get_required::<Widget>(&one)
            .await
            .unwrap()
            .status
            .as_ref()
            .unwrap()
            .ready_replicas,
        0
    );

    // It is deleted: the child is created, and the condition follows its readiness.
    client
        .delete::<Deployment>(&one, DeleteOptions::default())
        .await
        .unwrap();
    let ours = eventually("a deployment of the parent", async || {
        let found = client.get::<Deployment>(&one).await.unwrap()?;
        Some(found).filter(|found| !found.owner_references().is_empty())
    })
    .await;
    assert_ne!(ours.uid(), foreign.uid());
    let ready = json!({"status": {
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1, "observedGeneration": 1,
        "conditions": [
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
            {"type": "Available", "status": "True"},
        ],
    }});
    client
        .patch_status::<Deployment>(&one, &Patch::Merge(ready))
        .await
        .unwrap();
    let found = when_condition(&client, &one, "Ready", ("True", "AllConditionsMet")).await;
    assert_eq!(found.status.as_ref().unwrap().ready_replicas, 1);

    // Drift of the child is repaired, and its deletion too.
    let drift = Patch::Merge(json!({"spec": {"replicas": 9}}));
    client
        .field_manager("other")
        .patch::<Deployment>(&one, &drift)
        .await
        .unwrap();
    eventually("the replicas are restored", async || {
        let found = client.get_required::<Deployment>(&one).await.unwrap();
        (found.spec.replicas == Some(1)).then_some(())
    })
    .await;
    client
        .delete::<Deployment>(&one, DeleteOptions::default())
        .await
        .unwrap();
    eventually("the deleted child is created again", async || {
        client.get::<Deployment>(&one).await.unwrap()
    })
    .await;

    // All writes of the parent are on its status, and the object is gone without an error.
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    let writes = proxy
        .exchanges()
        .into_iter()
        .filter(|one| one.is_write() && one.path.contains("/widgets"));
    assert!(writes.into_iter().all(|one| one.path.ends_with("/status")));
}

// R111: a stale cache is told from a foreign object
#[steersman_testing::test]
async fn a_stale_cache_neither_adopts_nor_duplicates_nor_accuses(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");
    let orphan =
        json!({"metadata": {"name": "one", "namespace": fixture.namespace()}, "data": {"value": "0"}});
    client.create(&object::<ConfigMap>(orphan.clone())).await.unwrap();
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    Controller::of::<Widget>("widgets")
        .add_to(&manager, managed(configured()))
        .unwrap();
    let _running = run(manager);
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    when_condition(&client, &one, "Configured", ("False", "NotOwned")).await;

    // The watch of ConfigMaps stalls. The foreign object is deleted; the cache still has it.
    let stalled = proxy.inject(Matching::watches().path("/configmaps"), Fault::stall());
    proxy.cut(&Matching::watches().path("/configmaps"), Cut::Clean);
    stalled.hit().await;
    client
        .delete::<ConfigMap>(&one, DeleteOptions::default())
        .await
        .unwrap();
    // A change of the parent changes nothing about the object that was confirmed before.
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "2"}})))
        .await
        .unwrap();
    eventually("the parent of the new generation is reconciled", async || {
        let found = client.get_required::<Widget>(&one).await.unwrap();
        (found.status.as_ref()?.observed_generation == Some(2)).then_some(())
    })
    .await;
    drop(stalled);
    proxy.cut_connections();
    when_condition(&client, &one, "Configured", ("True", "Configured")).await;
    let ours = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(ours.data.as_ref().unwrap()["value"], "2");

    // The watch stalls again. Our child is deleted, and a foreign one created; the cache has ours.
    let stalled = proxy.inject(Matching::watches().path("/configmaps"), Fault::stall());
    proxy.cut(&Matching::watches().path("/configmaps"), Cut::Clean);
    stalled.hit().await;
    client
        .delete::<ConfigMap>(&one, DeleteOptions::default())
        .await
        .unwrap();
    let foreign = client.create(&object::<ConfigMap>(orphan)).await.unwrap();
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"value": "3"}})))
        .await
        .unwrap();
    when_condition(&client, &one, "Configured", ("False", "NotOwned")).await;
    let now = client.get_required::<ConfigMap>(&one).await.unwrap();
    assert_eq!(
        (now.uid(), now.resource_version()),
        (foreign.uid(), foreign.resource_version())
    );
    drop(stalled);
}
