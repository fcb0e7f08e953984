// SPDX-License-Identifier: Apache-2.0
//! Typed reads and mappings, in each representation.

use std::{
    env,
    error::Error,
    fs,
    process::{Command, Stdio},
    sync::Arc,
};

use bench_protocol::participant::{self, Start, Told, rounded, variable};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde::Deserialize;
use steersman_cache::{Object, Query, Representation, StoreOptions, store};
use steersman_core::ObjectKey;

/// Which representation this process is about; none in the first one.
const STORE: &str = "BENCH_STORE";

/// The fields of a Pod that reads and mappings use.
#[derive(Deserialize)]
struct Placed {
    metadata: Owned,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owned {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

/// The two looks that the benchmark takes at a Pod.
trait Look: for<'de> Deserialize<'de> + Send + Sync + 'static {
    fn node(&self) -> usize;
    fn owner(&self) -> Option<ObjectKey>;
}

impl Look for Pod {
    fn node(&self) -> usize {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_ref())
            .map_or(0, String::len)
    }

    fn owner(&self) -> Option<ObjectKey> {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        controller(self.metadata.namespace.as_deref().unwrap_or_default(), owners)
    }
}

impl Look for Placed {
    fn node(&self) -> usize {
        self.spec.node_name.as_ref().map_or(0, String::len)
    }

    fn owner(&self) -> Option<ObjectKey> {
        controller(&self.metadata.namespace, &self.metadata.owner_references)
    }
}

fn controller(namespace: &str, owners: &[OwnerReference]) -> Option<ObjectKey> {
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(ObjectKey::new(namespace, &owner.name))
}

fn main() -> Result<(), Box<dyn Error>> {
    let Ok(name) = env::var(STORE) else {
        return each_in_its_own_process();
    };
    let told = Told::from_environment();
    let _parent = participant::lifeline();
    let text = fs::read(variable("BENCH_PODS"))?;
    let pods: Vec<&[u8]> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    let events: usize = variable("BENCH_EVENTS").parse()?;
    let projection = Representation::projection::<Placed>;
    match name.as_str() {
        "decoded" => measure::<Pod>(&told, &name, Representation::decoded::<Pod>(), &pods, events),
        "projection" => measure::<Placed>(&told, &name, projection(), &pods, events),
        _ => measure::<Pod>(&told, &name, Representation::bytes(), &pods, events),
    }
}

/// Each representation runs in a separate process, like each peer, so that none inherits the heap of another.
fn each_in_its_own_process() -> Result<(), Box<dyn Error>> {
    let _driver = participant::lifeline();
    for name in ["bytes", "decoded", "projection"] {
        let mut child = Command::new(env::current_exe()?);
        let mut child = child.env(STORE, name).stdin(Stdio::piped()).spawn()?;
        // It ends when this does; to wait would close it.
        let _lifeline = child.stdin.take();
        if !child.wait()?.success() {
            return Err(format!("{name} failed").into());
        }
    }
    Ok(())
}

fn measure<K: Look>(
    told: &Told,
    name: &str,
    representation: Representation,
    pods: &[&[u8]],
    events: usize,
) -> Result<(), Box<dyn Error>> {
    let options = StoreOptions::new().representation(representation);
    let (mut writer, store) = store(options);
    for pod in pods {
        writer.apply(Object::shared_from_slice(pod)?);
    }
    // As the peers do: made one after the other, and not strewn among the objects.
    let keys = store.keys(&Query::new());
    assert_eq!(store.len(), told.n, "every Pod is in the store");
    let print = |case: &str, ops: usize, start: Start, sum: usize| {
        let taken = start.taken();
        let per_op = taken.cpu.as_secs_f64() * 1e9 / ops as f64;
        assert!(sum > 0, "something was looked at");
        let row = told.row(taken).with("case", case).with("store", name);
        row.with("ops", ops).with("ns_per_op", rounded(per_op)).print();
    };

    let (start, mut sum, ops) = (Start::now(), 0, 200_000);
    for at in 0..ops {
        let key = &keys[at * 7919 % keys.len()];
        let pod = store.get_as::<K>(key.namespace(), key.name())?;
        sum += pod.expect("it is in the store").node();
    }
    print("get", ops, start, sum);

    let (start, mut sum, ops) = (Start::now(), 0, 20);
    for _ in 0..ops {
        for pod in store.list_as::<K>(&Query::new()) {
            sum += pod?.node();
        }
    }
    print("list", ops, start, sum);

    let objects: Vec<Arc<Object>> = store.list(&Query::new());
    let (start, mut sum) = (Start::now(), 0);
    for at in 0..events {
        let pod = objects[at % objects.len()].decoded::<K>()?;
        sum += usize::from(pod.owner().is_some());
    }
    print("map", events, start, sum.max(1));
    drop(objects);

    let (start, mut sum) = (Start::now(), 0);
    for at in 0..events {
        if at % pods.len() == 0 {
            // The same revision would change nothing.
            writer.clear();
        }
        let change = writer.apply(Object::shared_from_slice(pods[at % pods.len()])?);
        let pod = change
            .as_ref()
            .and_then(|change| change.after())
            .expect("it is new");
        sum += usize::from(pod.decoded::<K>()?.owner().is_some());
    }
    print("decode_store_map", events, start, sum.max(1));
    Ok(())
}
