// SPDX-License-Identifier: Apache-2.0
//! What a store costs: bytes per object beside its own, and nanoseconds of CPU per operation.
//!
//! CPU and not time, so that a busy machine does not count. It reads both from `/proc`, so it runs on Linux.
//!
//! ```sh
//! cargo run --release -p steersman-cache --example store_costs
//! ```

#![expect(clippy::print_stdout, reason = "figures are what it is for")]

use std::{fmt::Write as _, hint::black_box};

use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;
use steersman_cache::{
    Index, Object, Query, Representation, Store, StoreOptions, StoreWriter, Transform, store,
};

const OBJECTS: usize = 100_000;

#[derive(Deserialize)]
struct Projection {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    colour: String,
}

/// An object of about 900 bytes, as a server sends it.
fn json(number: usize, revision: usize) -> String {
    let mut data = String::new();
    for field in 0..12 {
        let _ = write!(
            data,
            r#","field-{field}":"some text that stands for what a user wrote""#
        );
    }
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"config-{number:06}","namespace":"team-{}","uid":"8d7a1c5e-0000-4000-8000-{number:012}","resourceVersion":"{}","labels":{{"tier":"tier-{}"}}}},"data":{{"colour":"blue"{data}}}}}"#,
        number % 100,
        revision * OBJECTS + number + 1,
        number % 1000,
    )
}

fn name(number: usize) -> (String, String) {
    (format!("team-{}", number % 100), format!("config-{number:06}"))
}

/// Prints the CPU that each of `count` takes.
fn measure(what: &str, count: usize, run: impl FnOnce()) {
    let before = cpu_ns();
    run();
    println!("{what:58} {:>9} ns", (cpu_ns() - before) / count);
}

/// The CPU that this thread has used, in nanoseconds.
fn cpu_ns() -> usize {
    number_in("/proc/thread-self/schedstat", 0)
}

/// The memory of this process that is in use, in bytes.
fn resident() -> usize {
    number_in("/proc/self/statm", 1) * 4096
}

fn number_in(path: &str, field: usize) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let field = text.split_whitespace().nth(field);
    field.and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn fill(writer: &mut StoreWriter, revision: usize) {
    for number in 0..OBJECTS {
        let object = Object::from_slice(json(number, revision).as_bytes()).expect("this is an object");
        writer.apply(object);
    }
}

fn memory() {
    let before = resident();
    let (mut writer, store) = store(StoreOptions::new());
    fill(&mut writer, 0);
    let used = resident() - before;
    let beside = |used: usize| used.saturating_sub(store.bytes()) / store.len();
    println!("bytes per object, JSON alone: {}", store.bytes() / store.len());
    println!("beside it: {}", beside(used));
    writer.begin_replace();
    fill(&mut writer, 1);
    writer.end_replace();
    println!(
        "beside it, after a relist of changed objects: {}",
        beside(resident() - before)
    );
    let _ = store.list(&Query::new().namespace("team-1").label("tier", "tier-1"));
    println!(
        "beside it, with indexes of namespaces and a label: {}",
        beside(resident() - before)
    );
}

fn writes() {
    let parsed = |revision: usize| -> Vec<Object> {
        let texts = (0..OBJECTS).map(|number| json(number, revision));
        texts
            .map(|text| Object::from_slice(text.as_bytes()).expect("an object"))
            .collect()
    };
    let apply = |what: &str, options: StoreOptions, indexed: bool| {
        let (mut writer, store) = store(options);
        let tier = Index::on_header("tier", |object| {
            object.label("tier").map(|tier| tier.into_owned())
        });
        if indexed {
            store.add_index(&tier).expect("there is no other");
        }
        let (first, second, same) = (parsed(0), parsed(1), parsed(1));
        let mut run = |objects: Vec<Object>| {
            for object in objects {
                black_box(writer.apply(object));
            }
        };
        measure(&format!("apply, {what}, new"), OBJECTS, || run(first));
        measure(&format!("apply, {what}, changed"), OBJECTS, || run(second));
        measure(&format!("apply, {what}, the same"), OBJECTS, || run(same));
    };
    apply("bytes", StoreOptions::new(), false);
    apply("bytes and an index", StoreOptions::new(), true);
    let decoded = Representation::decoded::<ConfigMap>();
    apply("decoded", StoreOptions::new().representation(decoded), false);
    let projection = Representation::projection::<Projection>();
    apply(
        "projection",
        StoreOptions::new().representation(projection),
        false,
    );
    let transform = Transform::drop_fields(["data.field-3", "status"]);
    apply(
        "with dropped fields",
        StoreOptions::new().transform(transform),
        false,
    );
    let texts: Vec<String> = (0..OBJECTS).map(|number| json(number, 0)).collect();
    measure("Object::from_slice", OBJECTS, || {
        for text in &texts {
            let _ = black_box(Object::from_slice(text.as_bytes()));
        }
    });
}

fn reads() {
    let names: Vec<_> = (0..OBJECTS).map(|number| name(number * 7919 % OBJECTS)).collect();
    // All of them in no order, which memory is slow for, and then a few again and again.
    let each = |what: &str, store: &Store, read: &dyn Fn(&Store, &str, &str)| {
        measure(what, OBJECTS, || {
            for (namespace, name) in &names {
                read(store, namespace, name);
            }
        });
        measure(&format!("{what}, the same 100"), OBJECTS, || {
            for (namespace, name) in names[..100].iter().cycle().take(OBJECTS) {
                read(store, namespace, name);
            }
        });
    };
    let typed = |store: &Store, namespace: &str, name: &str| {
        let _ = black_box(store.get_as::<ConfigMap>(namespace, name));
    };
    let projected = |store: &Store, namespace: &str, name: &str| {
        let found = store.get_as::<Projection>(namespace, name).ok().flatten();
        black_box(found.map(|projection| projection.data.colour.len()));
    };
    let kept = |representation: Representation| {
        let (mut writer, store) = store(StoreOptions::new().representation(representation));
        fill(&mut writer, 0);
        store
    };
    let bytes = kept(Representation::bytes());
    each("get", &bytes, &|store, namespace, name| {
        black_box(store.get(namespace, name));
    });
    each("typed get, bytes", &bytes, &typed);
    let held: Vec<_> = bytes.list_as::<ConfigMap>(&Query::new()).collect();
    each("typed get, bytes, somebody holds it", &bytes, &typed);
    drop(held);
    let queries = [
        ("list of all", Query::new(), 1),
        (
            "list of a namespace (1,000)",
            Query::new().namespace("team-7"),
            100,
        ),
        (
            "list of a label (100)",
            Query::new().label("tier", "tier-7"),
            1000,
        ),
        (
            "list of both (100)",
            Query::new().label("tier", "tier-7").namespace("team-7"),
            1000,
        ),
    ];
    for (what, query, times) in queries {
        let _ = bytes.list(&query);
        measure(what, times, || {
            for _ in 0..times {
                black_box(bytes.list(&query));
            }
        });
    }
    measure("scan of all for a label, for_each", 1, || {
        let mut found = 0;
        bytes.for_each(&Query::new(), |object| {
            found += usize::from(object.label("tier").as_deref() == Some("tier-7"));
        });
        black_box(found);
    });
    drop(bytes);
    let budget = kept(Representation::budget(OBJECTS * 1000));
    each("typed get, budget, first", &budget, &typed);
    each("typed get, budget, again", &budget, &typed);
    drop(budget);
    each(
        "typed get, decoded",
        &kept(Representation::decoded::<ConfigMap>()),
        &typed,
    );
    each(
        "typed get, projection",
        &kept(Representation::projection::<Projection>()),
        &projected,
    );
}

fn main() {
    memory();
    writes();
    reads();
}
