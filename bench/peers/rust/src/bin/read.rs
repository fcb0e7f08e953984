// SPDX-License-Identifier: Apache-2.0
//! kube-runtime's store: get, list, and a mapping function on events.

use std::{
    fs::File,
    hint::black_box,
    io::{BufRead, BufReader},
};

use bench_protocol::participant::{self, Start, Told, rounded, variable};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    core::WatchEvent,
    runtime::{
        reflector::{self, ObjectRef},
        watcher::Event,
    },
};

const GETS: usize = 200_000;
const LISTS: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let told = Told::from_environment();
    let _driver = participant::lifeline();
    let events: usize = variable("BENCH_EVENTS").parse()?;
    let (store, mut writer) = reflector::store::<Pod>();
    let mut lines = Vec::with_capacity(told.n);
    writer.apply_watcher_event(&Event::Init);
    for line in BufReader::new(File::open(variable("BENCH_PODS"))?).lines() {
        let line = line?;
        writer.apply_watcher_event(&Event::InitApply(serde_json::from_str(&line)?));
        lines.push(format!(r#"{{"type":"MODIFIED","object":{line}}}"#));
    }
    writer.apply_watcher_event(&Event::InitDone);
    assert_eq!(store.len(), told.n, "every Pod is in the store");
    let keys: Vec<ObjectRef<Pod>> = store
        .state()
        .iter()
        .map(|pod| ObjectRef::from_obj(&**pod))
        .collect();

    measure(&told, "get", GETS, |index| {
        let pod = store
            .get(&keys[index.wrapping_mul(7_919) % keys.len()])
            .expect("it is there");
        node(&pod).len()
    });
    measure(&told, "list", LISTS, |_| {
        store.state().iter().map(|pod| node(pod).len()).sum()
    });
    let pods = store.state();
    measure(&told, "map", events, |index| {
        let key = owner(&pods[index % pods.len()]);
        black_box(&key).as_ref().map_or(0, |key| key.name.len())
    });
    drop(pods);
    measure(&told, "decode_store_map", events, |index| {
        let event: WatchEvent<Pod> = serde_json::from_str(&lines[index % lines.len()]).expect("a Pod");
        let WatchEvent::Modified(pod) = event else {
            panic!("every event is a change");
        };
        let event = Event::Apply(pod);
        writer.apply_watcher_event(&event);
        let Event::Apply(pod) = &event else {
            unreachable!("made above")
        };
        owner(pod).map_or(0, |key| key.name.len())
    });
    Ok(())
}

/// A read looks at one field of the object that it got.
fn node(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

struct Key {
    #[expect(dead_code, reason = "what a mapping function makes has both")]
    namespace: String,
    name: String,
}

/// The mapping function: from a Pod to the owner that controls it.
fn owner(pod: &Pod) -> Option<Key> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(Key {
        namespace: pod.metadata.namespace.clone()?,
        name: owner.name.clone(),
    })
}

fn measure(told: &Told, case: &str, times: usize, mut run: impl FnMut(usize) -> usize) {
    let start = Start::now();
    let mut sum = 0;
    for index in 0..times {
        sum += run(index);
    }
    black_box(sum);
    let taken = start.taken();
    told.row(taken)
        .with("case", case)
        .with("ops", times)
        .with("ns_per_op", rounded(taken.cpu.as_secs_f64() * 1e9 / times as f64))
        .print();
}
