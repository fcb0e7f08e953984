// SPDX-License-Identifier: Apache-2.0
//! Live reads from a server that follows a script.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt, client::Body};
use steersman_cache::{Cache, CacheMissPolicy, Query, Reader};
use support::context;

/// A reader past the cache whose server gives these pages in turn, and the queries that it is asked.
fn reader(pages: &[(&'static str, &[&str])]) -> (Reader, Arc<Mutex<Vec<String>>>) {
    let mut pages: Vec<String> = pages
        .iter()
        .map(|(token, items)| {
            let items = items.join(",");
            format!(r#"{{"metadata":{{"resourceVersion":"7","continue":"{token}"}},"items":[{items}]}}"#)
        })
        .collect();
    pages.reverse();
    let (pages, asked) = (Mutex::new(pages), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        seen.lock().unwrap().push(query);
        let page = pages.lock().unwrap().pop().expect("there are no more pages");
        async move { Ok::<_, Infallible>(Response::new(Body::from(page.into_bytes()))) }
    });
    let cache = Cache::builder(context(Client::new(service, "default"))).build();
    (cache.reader(CacheMissPolicy::Live), asked)
}

async fn names(reader: &Reader, query: &Query) -> Vec<String> {
    let found = reader.list::<ConfigMap>(query).await.unwrap();
    found.iter().map(|map| map.name_any()).collect()
}

const A: &str = r#"{"metadata":{"name":"a"}}"#;
const B: &str = r#"{"metadata":{"name":"b"}}"#;
const C: &str = r#"{"metadata":{"name":"c"}}"#;
const NAMELESS: &str = r#"{"metadata":{}}"#;

// R52
#[tokio::test]
async fn a_limited_list_stops_at_its_limit() {
    let (reader, asked) = reader(&[("1", &[]), ("2", &[A, NAMELESS]), ("3", &[B]), ("", &[C])]);
    assert_eq!(names(&reader, &Query::new().limit(2)).await, ["a", "b"]);
    assert_eq!(
        *asked.lock().unwrap(),
        ["limit=2", "limit=2&continue=1", "limit=2&continue=2"]
    );
}

#[tokio::test]
async fn a_list_without_a_limit_reads_all_pages() {
    let (reader, asked) = reader(&[("1", &[A, B]), ("", &[C])]);
    assert_eq!(names(&reader, &Query::new()).await, ["a", "b", "c"]);
    assert_eq!(*asked.lock().unwrap(), ["", "continue=1"]);
}
