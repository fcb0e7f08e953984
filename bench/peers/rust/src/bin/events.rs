// SPDX-License-Identifier: Apache-2.0
//! kube-runtime's reflector, and a handler that sees every new Widget.

use std::pin::pin;

use bench_protocol::{
    objects::SENT,
    participant::{self, Start, Told, percentile, rounded, unix_nanos},
};
use futures::TryStreamExt;
use kube::{
    Api, Client, CustomResource, ResourceExt,
    runtime::{WatchStreamExt, reflector, watcher},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Widget",
    namespaced,
    status = "WidgetStatus"
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

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
struct Endpoint {
    host: String,
    port: i32,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
struct WidgetStatus {
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let told = Told::from_environment();
    let _driver = participant::lifeline();
    let client = Client::try_default().await?;
    let start = Start::now();
    let (store, writer) = reflector::store::<Widget>();
    let watch = watcher(Api::<Widget>::all(client), watcher::Config::default()).default_backoff();
    let mut events = pin!(reflector::reflector(writer, watch).applied_objects());
    let (mut seen, mut latencies) = (0, Vec::with_capacity(told.n));
    while let Some(widget) = events.try_next().await? {
        seen += 1;
        if told.mode == "latency" {
            latencies.push(latency(&widget));
        }
        if seen == told.n {
            break;
        }
    }
    let taken = start.taken();
    assert_eq!(store.len(), told.n, "every Widget is in the store");
    let per_event = taken.cpu.as_secs_f64() * 1e6 / told.n as f64;
    let row = told
        .row(taken)
        .with("case", told.mode.as_str())
        .with("us_per_event", rounded(per_event));
    if told.mode == "latency" {
        // The connection was new.
        latencies.drain(..told.n / 10);
        latencies.sort_unstable();
        let at = |percent| rounded(percentile(&latencies, percent) as f64 / 1e3);
        row.with("p50_us", at(50)).with("p99_us", at(99)).print();
    } else {
        row.print();
    }
    Ok(())
}

fn latency(widget: &Widget) -> u64 {
    let sent = widget.annotations().get(SENT).and_then(|sent| sent.parse().ok());
    unix_nanos().saturating_sub(sent.expect("a Widget says when it was sent"))
}
