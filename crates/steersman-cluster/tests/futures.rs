// SPDX-License-Identifier: Apache-2.0
//! Futures can move between threads, and handles be shared by them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use k8s_openapi::api::{apps::v1::Deployment, autoscaling::v1::Scale, core::v1::ConfigMap};
use kube::api::{Patch, WatchParams};
use serde_json::{Value, json};
use steersman_cache::{Query, Resource};
use steersman_cluster::{
    Client, Cluster, ClusterBuilder, ClusterName, DeleteOptions, Error, Fence, FenceKeeper, KindClient,
    MapError, Mapper, MetadataClient, Recorder, ResourceQuery, Watch,
};
use steersman_core::{MonotonicTime, ObjectKey};

fn send<T: Send>(value: T) -> T {
    value
}

fn shared<T: Send + Sync + 'static>() {}

#[test]
fn handles_are_shared_between_threads() {
    shared::<Cluster>();
    shared::<ClusterName>();
    shared::<Client>();
    shared::<KindClient<ConfigMap>>();
    shared::<MetadataClient<ConfigMap>>();
    shared::<Mapper>();
    shared::<Recorder>();
    shared::<Fence>();
    shared::<FenceKeeper>();
    shared::<Error>();
    shared::<MapError>();
}

#[tokio::test]
async fn futures_move_between_threads() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let cluster = Cluster::new(config).unwrap();
    let (client, key, query) = (cluster.client(), ObjectKey::new("n", "a"), Query::new());
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let patch: Patch<Value> = Patch::Merge(json!({}));
    drop(send(client.get::<ConfigMap>(&key)));
    drop(send(client.list::<ConfigMap>(&query)));
    drop(send(client.create(&map)));
    drop(send(client.update(&map)));
    drop(send(client.update_status(&map)));
    drop(send(client.apply(&map)));
    drop(send(client.patch::<ConfigMap>(&key, &patch)));
    drop(send(client.patch_status::<ConfigMap>(&key, &patch)));
    drop(send(client.delete::<ConfigMap>(&key, DeleteOptions::default())));
    drop(send(
        client.delete_collection::<ConfigMap>(&query, DeleteOptions::default()),
    ));
    let options = WatchParams::default();
    drop(send(client.watch::<ConfigMap>("n", &options, "0")));
    drop(send(client.get_subresource::<Deployment, Scale>(&key, "scale")));
    drop(send(
        client.create_subresource::<Deployment, Scale>(&key, "scale", &map),
    ));
    drop(send(client.of(&Resource::of::<ConfigMap>()).get(&key)));
    drop(send(client.metadata::<ConfigMap>().list(&query)));
    let ask = ResourceQuery::of::<ConfigMap>();
    drop(send(cluster.mapper().resolve_until(&ask, MonotonicTime::ORIGIN)));
    drop(send(cluster.recorder("web").flush()));
    drop(send(cluster.state_when(|_| true)));
    drop(send(Fence::open().closed()));
    let build: fn(ClusterBuilder) -> _ = |builder| send(builder.build());
    drop(build(Cluster::builder("other")));
    fn stream<T: Send + Unpin>() {}
    stream::<Watch<ConfigMap>>();
}
