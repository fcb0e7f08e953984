// SPDX-License-Identifier: Apache-2.0
//! An informer, and a handler that sees every new Widget.

use std::{
    error::Error,
    sync::{Arc, Mutex},
};

use bench_cache::surroundings;
use bench_protocol::{
    objects::SENT,
    participant::{self, Start, Told, percentile, rounded, unix_nanos},
};
use steersman_cache::{Event, Informer, InformerOptions, Object, Resource, Scope};
use tokio::sync::Notify;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let told = Told::from_environment();
    let _driver = participant::lifeline();
    let surroundings = surroundings().await?;
    let start = Start::now();
    let resource = Resource::new("bench.example", "v1", "Widget", "widgets");
    let widgets = Informer::start(&surroundings, resource, Scope::all(), InformerOptions::default());
    let seen = Arc::new((Mutex::new((0, Vec::new())), Notify::new()));
    let (counted, is_latency, n) = (Arc::clone(&seen), told.mode == "latency", told.n);
    let _handler = widgets.handle("count", move |event: &Event| {
        let mut state = counted.0.lock().expect("nobody panics here");
        state.0 += 1;
        if is_latency {
            state.1.push(latency(event.object()));
        }
        if state.0 == n {
            counted.1.notify_one();
        }
    });
    seen.1.notified().await;
    let taken = start.taken();
    assert_eq!(widgets.store().len(), told.n, "every Widget is in the store");
    let per_event = taken.cpu.as_secs_f64() * 1e6 / told.n as f64;
    let row = told
        .row(taken)
        .with("case", told.mode.as_str())
        .with("us_per_event", rounded(per_event))
        .with("stored_mb", rounded(widgets.store().bytes() as f64 / 1e6));
    if is_latency {
        let mut latencies = seen
            .0
            .lock()
            .expect("nobody panics here")
            .1
            .split_off(told.n / 10);
        latencies.sort_unstable();
        let at = |percent| rounded(percentile(&latencies, percent) as f64 / 1e3);
        row.with("p50_us", at(50)).with("p99_us", at(99)).print();
    } else {
        row.print();
    }
    Ok(())
}

fn latency(widget: &Object) -> u64 {
    let sent = widget.annotation(SENT).and_then(|sent| sent.parse().ok());
    unix_nanos().saturating_sub(sent.expect("a Widget says when it was sent"))
}
