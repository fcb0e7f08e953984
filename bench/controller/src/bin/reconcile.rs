// SPDX-License-Identifier: Apache-2.0
//! A manager with a controller that has nothing to do, as `cargo new` and the manual lead to it.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bench_controller::{Gadget, Widget};
use bench_protocol::participant::{self, Row, Start, Told, rounded, variable};
use kube::Resource as _;
use steersman::{
    cache::Resource,
    prelude::*,
    runtime::{Logging, dynamic},
};
use tokio::sync::Notify;

/// Observation time of an idle manager.
const IDLE: Duration = Duration::from_secs(10);

/// Number of completed reconciles, and the number to wait for.
#[derive(Default)]
struct Count {
    ended: AtomicUsize,
    wanted: AtomicUsize,
    reached: Notify,
}

impl Count {
    fn one(&self) {
        if self.ended.fetch_add(1, Ordering::Relaxed) + 1 == self.wanted.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let told = Told::from_environment();
    let _driver = participant::lifeline();
    Logging::from_env().install()?;
    let start = Start::now();
    let manager = Manager::builder()
        .metrics(|server| server.address(([127, 0, 0, 1], 0).into()))
        .build()
        .await?;
    let count = Arc::new(Count::default());
    let running = manager.clone();
    let taken = tokio::select! {
        biased;
        ended = async { plan(&told, &manager, &count)?; Ok::<_, Box<dyn Error>>(running.run().await?) } => return ended,
        taken = measure(&told, start, &count) => taken,
    };
    let informers = manager.cluster()?.cache().informers();
    let objects: usize = informers.iter().map(|informer| informer.store().len()).sum();
    let stored: usize = informers.iter().map(|informer| informer.store().bytes()).sum();
    assert_eq!(
        objects,
        count.ended.load(Ordering::Relaxed),
        "every object is in the store"
    );
    taken.with("stored_mb", rounded(stored as f64 / 1e6)).print();
    Ok(())
}

fn plan(told: &Told, manager: &Manager, count: &Arc<Count>) -> Result<(), Box<dyn Error>> {
    let ended = Arc::clone(count);
    let nothing = reconcile_fn(move |_: Request, _: Context| {
        let ended = Arc::clone(&ended);
        async move {
            ended.one();
            Ok::<_, steersman::cluster::Error>(Action::await_change())
        }
    });
    count.wanted.store(told.n, Ordering::Relaxed);
    match told.mode.as_str() {
        "noop" => drop(Controller::of::<Widget>("widgets").add_to(manager, nothing)?),
        "mapped" => {
            let owner = |gadget: &Gadget| {
                let owners = gadget.meta().owner_references.iter().flatten();
                let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
                let namespace = gadget.meta().namespace.as_deref().unwrap_or_default();
                owner.map(|owner| ObjectKey::new(namespace, &owner.name))
            };
            Controller::of::<Widget>("widgets")
                .watches(kind::<Gadget>(), map_fn(owner))
                .add_to(manager, nothing)?;
        }
        "read" => {
            let ended = Arc::clone(count);
            let read = reconcile_fn(move |request: Request, cx: Context| {
                let ended = Arc::clone(&ended);
                async move {
                    let widget = cx.client().get::<Widget>(request.key()).await?;
                    if widget.is_some_and(|widget| !widget.spec.image.is_empty()) {
                        ended.one();
                    }
                    Ok::<_, steersman::cluster::Error>(Action::await_change())
                }
            });
            Controller::of::<Widget>("widgets").add_to(manager, read)?;
        }
        _ => {
            let kinds: usize = variable("BENCH_KINDS").parse()?;
            count.wanted.store(told.n * kinds, Ordering::Relaxed);
            for index in 0..kinds {
                let (kind, plural) = (format!("Widget{index}"), format!("widget{index}s"));
                let resource = Resource::new("bench.example", "v1", &kind, &plural);
                Controller::of_kind(plural, dynamic(resource).namespaced(true))
                    .add_to(manager, nothing.clone())?;
            }
        }
    }
    Ok(())
}

async fn measure(told: &Told, start: Start, count: &Count) -> Row {
    count.reached.notified().await;
    match told.mode.as_str() {
        "mapped" => {
            let start = Start::now();
            count.wanted.store(2 * told.n, Ordering::Relaxed);
            participant::say("reconciled");
            count.reached.notified().await;
            row(told, start, told.n)
        }
        "idle" => {
            // Not idle while the first reconciles complete.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let start = Start::now();
            tokio::time::sleep(IDLE).await;
            let taken = start.taken();
            let idle = taken.cpu.as_secs_f64() * 1e3 / taken.wall.as_secs_f64();
            told.row(taken)
                .with("case", "idle")
                .with("idle_ms_per_s", rounded(idle))
        }
        _ => row(told, start, told.n),
    }
}

fn row(told: &Told, start: Start, reconciles: usize) -> Row {
    let taken = start.taken();
    let each = taken.cpu.as_secs_f64() * 1e6 / reconciles as f64;
    told.row(taken)
        .with("case", told.mode.as_str())
        .with("us_per_reconcile", rounded(each))
}
