// SPDX-License-Identifier: Apache-2.0
//! `/metrics` of both servers.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::collections::BTreeMap;

use harness::{Raw, builder};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use steersman_testing::{Fixture, OwnServer, OwnServerOptions};

async fn metrics(server: &OwnServer) -> String {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    server.client().request_text(request).await.unwrap()
}

/// Returns the number of requests for runtime classes by their labels.
fn requests(metrics: &str) -> BTreeMap<String, u64> {
    let lines = metrics.lines().filter_map(|line| {
        let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
        let is_ours = labels.contains("resource=\"runtimeclasses\"") && !labels.contains("LIST\"");
        is_ours.then(|| (labels.to_owned(), count.parse::<f64>().unwrap() as u64))
    });
    lines.filter(|(labels, _)| !labels.contains("WATCH")).collect()
}

#[steersman_testing::test]
async fn counts_requests_and_objects(fixture: Fixture) {
    let server = fixture.own_server(OwnServerOptions::default()).await;
    let classes: Api<RuntimeClass> = Api::all(server.client());
    let class: RuntimeClass =
        serde_json::from_value(json!({"metadata": {"name": "measured"}, "handler": "h"})).unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    classes.create(&dry, &class).await.unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap_err();
    for _ in 0..3 {
        classes.get("absent").await.unwrap_err();
    }
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    classes
        .patch("measured", &PatchParams::default(), &patch)
        .await
        .unwrap();
    classes.list(&ListParams::default()).await.unwrap();

    let label = |code: u16, dry_run: &str, verb: &str| {
        format!(
            "code=\"{code}\",component=\"apiserver\",dry_run=\"{dry_run}\",group=\"node.k8s.io\",resource=\"runtimeclasses\",scope=\"resource\",subresource=\"\",verb=\"{verb}\",version=\"v1\""
        )
    };
    let wanted = BTreeMap::from([
        (label(201, "All", "POST"), 1),
        (label(201, "", "POST"), 1),
        (label(409, "", "POST"), 1),
        (label(404, "", "GET"), 3),
        (label(200, "", "PATCH"), 1),
    ]);
    let text = metrics(&server).await;
    assert_eq!(requests(&text), wanted, "{text}");
    assert!(text.contains("# TYPE apiserver_request_total counter\n"));
    let build = text
        .lines()
        .find(|line| line.starts_with("kubernetes_build_info{"));
    assert!(
        build.is_some_and(|line| line.contains("minor=\"37\"") && line.ends_with(" 1")),
        "{build:?}"
    );
    classes
        .delete("measured", &DeleteParams::default())
        .await
        .unwrap();
}

/// The real server counts them once a minute.
#[tokio::test]
async fn counts_stored_objects() {
    let server = builder().build();
    let class = json!({"metadata": {"name": "measured"}, "handler": "h"});
    let path = "/apis/node.k8s.io/v1/runtimeclasses";
    Raw::new("POST", path).json(&class).send(&server).await.ok();
    let metrics = Raw::get("/metrics").send(&server).await.body;
    let line = "apiserver_resource_objects{group=\"node.k8s.io\",resource=\"runtimeclasses\"} 1";
    assert!(metrics.lines().any(|known| known == line), "{metrics}");
}
