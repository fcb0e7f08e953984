// SPDX-License-Identifier: Apache-2.0
//! kube-runtime's Controller that has nothing to do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench_protocol::participant::{self, Start, Told, rounded};
use futures::StreamExt;
use kube::{
    Api, Client, CustomResource, ResourceExt,
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Widget",
    namespaced,
    status = "Status"
)]
#[serde(rename_all = "camelCase")]
struct WidgetSpec {
    color: String,
    image: String,
    replicas: i32,
    size: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Gadget",
    namespaced,
    status = "Status"
)]
#[serde(rename_all = "camelCase")]
struct GadgetSpec {
    color: String,
    image: String,
    replicas: i32,
    size: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Endpoint {
    host: String,
    port: i32,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    ready_replicas: i32,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    last_transition_time: String,
}

/// Number of completed reconciles, and the number to wait for.
#[derive(Default)]
struct Count {
    ended: AtomicUsize,
    wanted: AtomicUsize,
    reached: Notify,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let told = Told::from_environment();
    let _driver = participant::lifeline();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let client = Client::try_default().await?;
    let start = Start::now();
    let count = Arc::new(Count::default());
    count.wanted.store(told.n, Ordering::Relaxed);
    let mut controller = Controller::new(Api::<Widget>::all(client.clone()), watcher::Config::default());
    if told.mode == "mapped" {
        controller = controller.watches(Api::<Gadget>::all(client), watcher::Config::default(), owner);
    }
    let store: Store<Widget> = controller.store();
    let running = controller
        .run(
            reconcile,
            |_, _: &kube::Error, _| Action::requeue(Duration::from_secs(1)),
            Arc::clone(&count),
        )
        .for_each(|_| std::future::ready(()));
    let measured = async {
        count.reached.notified().await;
        if told.mode != "mapped" {
            return start.taken();
        }
        let start = Start::now();
        count.wanted.store(2 * told.n, Ordering::Relaxed);
        participant::say("reconciled");
        count.reached.notified().await;
        start.taken()
    };
    let taken = tokio::select! {
        biased;
        taken = measured => taken,
        () = running => return Err("the controller ended".into()),
    };
    assert_eq!(store.len(), told.n, "every Widget is in the store");
    let each = taken.cpu.as_secs_f64() * 1e6 / told.n as f64;
    told.row(taken)
        .with("case", told.mode.as_str())
        .with("us_per_reconcile", rounded(each))
        .print();
    Ok(())
}

/// The cached object is handed to every reconcile, so that reading it costs nothing more.
async fn reconcile(widget: Arc<Widget>, count: Arc<Count>) -> Result<Action, kube::Error> {
    if !widget.spec.image.is_empty()
        && count.ended.fetch_add(1, Ordering::Relaxed) + 1 == count.wanted.load(Ordering::Relaxed)
    {
        count.reached.notify_one();
    }
    Ok(Action::await_change())
}

fn owner(gadget: Gadget) -> Option<ObjectRef<Widget>> {
    let owner = gadget
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))?;
    Some(ObjectRef::new(&owner.name).within(&gadget.namespace()?))
}
