// SPDX-License-Identifier: Apache-2.0
//! Workloads that pretend to run.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::time::Duration;

use harness::{Raw, Watch, builder};
use serde_json::{Value, json};
use steersman_apiserver::{ApiServer, Workloads, clock::ManualClock};

const APPS: &str = "/apis/apps/v1/namespaces/default";
const CORE: &str = "/api/v1/namespaces/default";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn server() -> ApiServer {
    builder().workloads(Workloads::default().nodes(3)).build()
}

fn template(annotations: &Value) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    })
}

fn set(name: &str, replicas: u32) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template(&json!({}))},
    })
}

async fn create(server: &ApiServer, path: &str, body: &Value) -> Value {
    Raw::new("POST", path).json(body).send(server).await.ok()
}

async fn get(server: &ApiServer, path: &str) -> Value {
    Raw::get(path).send(server).await.ok()
}

async fn patch(server: &ApiServer, path: &str, body: &Value) -> Value {
    let raw = Raw::new("PATCH", path).header("content-type", "application/merge-patch+json");
    raw.json(body).send(server).await.ok()
}

async fn list(server: &ApiServer, path: &str) -> Vec<Value> {
    get(server, path).await["items"].as_array().unwrap().clone()
}

fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind);
    found.map_or(Value::Null, |condition| condition["status"].clone())
}

#[tokio::test]
async fn guarantee_1_workloads_run_only_if_enabled() {
    let server = builder().build();
    create(&server, &format!("{APPS}/deployments"), &set("web", 2)).await;
    assert!(list(&server, &format!("{CORE}/pods")).await.is_empty());
    assert!(list(&server, "/api/v1/nodes").await.is_empty());
}

#[tokio::test]
async fn a_deployment_becomes_available_and_scales() {
    let server = server();
    let path = format!("{APPS}/deployments");
    create(&server, &path, &set("web", 2)).await;
    let deployment = get(&server, &format!("{path}/web")).await;
    assert_eq!(deployment["status"]["availableReplicas"], 2, "{deployment}");
    assert_eq!(
        deployment["status"]["observedGeneration"],
        deployment["metadata"]["generation"]
    );
    assert_eq!(condition(&deployment, "Available"), "True");
    let pods = list(&server, &format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 2);
    for pod in &pods {
        assert_eq!(pod["status"]["phase"], "Running");
        assert_eq!(condition(pod, "Ready"), "True");
        assert!(pod["spec"]["nodeName"].as_str().unwrap().starts_with("node-"));
    }
    patch(&server, &format!("{path}/web"), &json!({"spec": {"replicas": 1}})).await;
    assert_eq!(list(&server, &format!("{CORE}/pods")).await.len(), 1);
    Raw::new("DELETE", &format!("{path}/web"))
        .send(&server)
        .await
        .ok();
    assert!(list(&server, &format!("{CORE}/pods")).await.is_empty());
    assert!(list(&server, &format!("{APPS}/replicasets")).await.is_empty());
}

#[tokio::test]
async fn a_change_of_the_template_rolls_to_a_new_set() {
    let server = server();
    let path = format!("{APPS}/deployments");
    create(&server, &path, &set("web", 3)).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}});
    patch(&server, &format!("{path}/web"), &image).await;
    let deployment = get(&server, &format!("{path}/web")).await;
    assert_eq!(deployment["status"]["updatedReplicas"], 3, "{deployment}");
    assert_eq!(deployment["status"]["replicas"], 3);
    assert_eq!(
        deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
        "2"
    );
    let sets = list(&server, &format!("{APPS}/replicasets")).await;
    let mut replicas: Vec<i64> = sets
        .iter()
        .map(|set| set["spec"]["replicas"].as_i64().unwrap())
        .collect();
    replicas.sort_unstable();
    assert_eq!(replicas, [0, 3]);
    for pod in list(&server, &format!("{CORE}/pods")).await {
        assert_eq!(pod["spec"]["containers"][0]["image"], "i:2");
    }
}

#[tokio::test]
async fn a_rollout_of_pods_that_crash_stops_and_keeps_the_old_ones() {
    let server = server();
    let path = format!("{APPS}/deployments");
    create(&server, &path, &set("web", 4)).await;
    let crash = template(&json!({"workloads.steersman.dev/outcome": "crash"}));
    let deployment = patch(
        &server,
        &format!("{path}/web"),
        &json!({"spec": {"template": crash}}),
    )
    .await;
    assert_eq!(deployment["metadata"]["generation"], 2);
    let deployment = get(&server, &format!("{path}/web")).await;
    assert_eq!(deployment["status"]["availableReplicas"], 3, "{deployment}");
    assert_eq!(condition(&deployment, "Available"), "True");
    assert!(deployment["status"]["updatedReplicas"].as_i64().unwrap() < 4);
}

fn told(name: &str, outcome: &str) -> Value {
    let mut set = set(name, 2);
    set["spec"]["template"] = template(&json!({"workloads.steersman.dev/outcome": outcome}));
    set
}

#[tokio::test]
async fn terminated_pods_of_sets_are_restarted_and_not_replaced() {
    for outcome in ["fail", "succeed"] {
        for kind in ["deployments", "replicasets", "statefulsets", "daemonsets"] {
            let server = server();
            create(&server, &format!("{APPS}/{kind}"), &told("web", outcome)).await;
            let pods = list(&server, &format!("{CORE}/pods")).await;
            // A StatefulSet waits for its first one, a DaemonSet has one on each node.
            assert!((1..=3).contains(&pods.len()), "{kind}: {}", pods.len());
            for pod in pods {
                let state = &pod["status"]["containerStatuses"][0]["state"];
                assert_eq!(state["waiting"]["reason"], "CrashLoopBackOff", "{kind}: {pod}");
                assert_eq!(pod["status"]["phase"], "Running");
            }
        }
    }
    let server = server();
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let annotations = json!({"workloads.steersman.dev/outcome": "fail"});
    let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec});
    create(&server, &format!("{CORE}/pods"), &pod).await;
    let pod = get(&server, &format!("{CORE}/pods/p")).await;
    assert_eq!(pod["status"]["phase"], "Failed");
}

#[tokio::test]
async fn guarantee_4_huge_workloads_are_created_in_batches() {
    let endless = json!({
        "metadata": {"name": "endless", "annotations": {"workloads.steersman.dev/outcome": "fail"}},
        "spec": {"backoffLimit": i32::MAX, "completions": 1000, "parallelism": 50, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    let mut huge = set("huge", 0);
    huge["spec"]["replicas"] = json!(i32::MAX);
    let mut stateful = huge.clone();
    stateful["spec"]["podManagementPolicy"] = json!("Parallel");
    for (path, object) in [
        (JOBS.to_owned(), endless),
        (format!("{APPS}/replicasets"), huge),
        (format!("{APPS}/statefulsets"), stateful),
    ] {
        let clock = ManualClock::default();
        let server = builder()
            .clock(clock.clone())
            .workloads(Workloads::default())
            .build();
        create(&server, &path, &object).await;
        let count = async || list(&server, &format!("{CORE}/pods?limit=2000")).await.len();
        assert_eq!(count().await, 100, "{path}");
        assert_eq!(count().await, 100, "{path}");
        clock.advance(Duration::from_secs(1));
        // The request that is the first of the second does the work of that second after it was answered.
        count().await;
        assert_eq!(count().await, 200, "{path}");
    }
}

#[tokio::test]
async fn numbers_without_measure_are_survived() {
    let clock = ManualClock::default();
    let server = builder()
        .clock(clock.clone())
        .workloads(Workloads::default())
        .build();
    let path = format!("{APPS}/deployments");
    let mut web = set("web", 2);
    web["spec"]["strategy"] =
        json!({"rollingUpdate": {"maxSurge": "9223372036854775807%", "maxUnavailable": 0}});
    web["spec"]["template"] = template(&json!({"workloads.steersman.dev/startup": "1e19"}));
    create(&server, &path, &web).await;
    let sets = list(&server, &format!("{APPS}/replicasets")).await;
    let name = sets[0]["metadata"]["name"].as_str().unwrap();
    let last =
        json!({"metadata": {"annotations": {"deployment.kubernetes.io/revision": i64::MAX.to_string()}}});
    patch(&server, &format!("{APPS}/replicasets/{name}"), &last).await;
    let next = json!({"spec": {"template": template(&json!({"workloads.steersman.dev/startup": null}))}});
    patch(&server, &format!("{path}/web"), &next).await;
    let deployment = get(&server, &format!("{path}/web")).await;
    assert_eq!(deployment["status"]["availableReplicas"], 2, "{deployment}");
    let pods = list(&server, &format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 2);
}

fn reason(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.map_or(Value::Null, |condition| condition["reason"].clone())
}

#[tokio::test]
async fn a_rollout_without_progress_exceeds_its_deadline_and_a_better_one_recovers() {
    let clock = ManualClock::default();
    let server = builder()
        .clock(clock.clone())
        .workloads(Workloads::default())
        .build();
    let path = format!("{APPS}/deployments/web");
    let mut web = told("web", "crash");
    web["spec"]["progressDeadlineSeconds"] = json!(30);
    create(&server, &format!("{APPS}/deployments"), &web).await;
    let mut watch = Watch::open(&server, &format!("{APPS}/deployments?watch=1")).await;
    let begun = watch.next().await.unwrap()["object"].clone();
    assert_eq!(condition(&begun, "Progressing"), "True", "{begun}");
    clock.advance(Duration::from_secs(29));
    watch.quiet().await;
    clock.advance(Duration::from_secs(2));
    let late = watch.next().await.unwrap()["object"].clone();
    assert_eq!(condition(&late, "Progressing"), "False", "{late}");
    assert_eq!(reason(&late, "Progressing"), "ProgressDeadlineExceeded");
    let conditions = late["status"]["conditions"].as_array().unwrap();
    let told = conditions
        .iter()
        .find(|condition| condition["type"] == "Progressing");
    let message = told.unwrap()["message"].as_str().unwrap();
    assert!(message.ends_with("\" has timed out progressing."), "{message}");
    patch(
        &server,
        &path,
        &json!({"spec": {"template": template(&json!({"workloads.steersman.dev/outcome": null}))}}),
    )
    .await;
    let better = get(&server, &path).await;
    assert_eq!(
        reason(&better, "Progressing"),
        "NewReplicaSetAvailable",
        "{better}"
    );
    assert_eq!(condition(&better, "Progressing"), "True");
    // What was complete once is never late again.
    clock.advance(Duration::from_secs(100));
    get(&server, &path).await;
    let after = get(&server, &path).await;
    assert_eq!(reason(&after, "Progressing"), "NewReplicaSetAvailable");
}

#[tokio::test]
async fn a_paused_rollout_is_neither_late_nor_complete() {
    let clock = ManualClock::default();
    let server = builder()
        .clock(clock.clone())
        .workloads(Workloads::default())
        .build();
    let path = format!("{APPS}/deployments/web");
    create(&server, &format!("{APPS}/deployments"), &set("web", 1)).await;
    patch(
        &server,
        &path,
        &json!({"spec": {"paused": true, "template": template(&json!({"a": "b"}))}}),
    )
    .await;
    clock.advance(Duration::from_secs(1000));
    let paused = get(&server, &path).await;
    assert_eq!(condition(&paused, "Progressing"), "Unknown", "{paused}");
    assert_eq!(reason(&paused, "Progressing"), "DeploymentPaused");
    patch(&server, &path, &json!({"spec": {"paused": false}})).await;
    let resumed = get(&server, &path).await;
    assert_eq!(
        reason(&resumed, "Progressing"),
        "NewReplicaSetAvailable",
        "{resumed}"
    );
}

#[tokio::test]
async fn pods_are_available_once_they_have_been_ready_for_long_enough() {
    for (kind, field) in [
        ("deployments", "availableReplicas"),
        ("replicasets", "availableReplicas"),
        ("statefulsets", "availableReplicas"),
        ("daemonsets", "numberAvailable"),
    ] {
        let clock = ManualClock::default();
        let server = builder()
            .clock(clock.clone())
            .workloads(Workloads::default())
            .build();
        let mut web = set("web", 1);
        web["spec"]["minReadySeconds"] = json!(10);
        create(&server, &format!("{APPS}/{kind}"), &web).await;
        let path = format!("{APPS}/{kind}/web");
        let young = get(&server, &path).await;
        assert_eq!(young["status"][field].as_i64().unwrap_or_default(), 0, "{young}");
        let ready = ["readyReplicas", "numberReady"].map(|field| young["status"][field].as_i64());
        assert!(ready.contains(&Some(1)), "{young}");
        let revision = server.revision();
        let mut watch = Watch::open(
            &server,
            &format!("{APPS}/{kind}?watch=1&resourceVersion={revision}"),
        )
        .await;
        watch.quiet().await;
        clock.advance(Duration::from_secs(10));
        let old = loop {
            let event = watch.next().await.unwrap();
            if event["object"]["status"][field] == 1 {
                break event["object"].clone();
            }
        };
        if kind == "deployments" {
            assert_eq!(reason(&old, "Available"), "MinimumReplicasAvailable");
        }
    }
}

#[tokio::test]
async fn stateful_sets_create_pods_in_order() {
    let server = builder().workloads(Workloads::default()).stepped().build();
    let mut watch = Watch::open(&server, &format!("{CORE}/pods?watch=1")).await;
    create(&server, &format!("{APPS}/statefulsets"), &set("db", 3)).await;
    server.settle();
    let mut order = Vec::new();
    while order.len() < 6 {
        let event = watch.next().await.unwrap();
        let name = event["object"]["metadata"]["name"].as_str().unwrap().to_owned();
        if event["type"] == "ADDED" {
            order.push(format!("{name} made"));
        } else if condition(&event["object"], "Ready") == "True" {
            order.push(format!("{name} ready"));
        }
    }
    let expected = [
        "db-0 made",
        "db-0 ready",
        "db-1 made",
        "db-1 ready",
        "db-2 made",
        "db-2 ready",
    ];
    assert_eq!(order, expected);
    let db = get(&server, &format!("{APPS}/statefulsets/db")).await;
    assert_eq!(db["status"]["readyReplicas"], 3);
    patch(
        &server,
        &format!("{APPS}/statefulsets/db"),
        &json!({"spec": {"replicas": 1}}),
    )
    .await;
    server.settle();
    let pods = list(&server, &format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0]["metadata"]["name"], "db-0");
}

#[tokio::test]
async fn daemon_sets_cover_all_nodes_also_new_ones() {
    let server = server();
    create(&server, &format!("{APPS}/daemonsets"), &set("agent", 1)).await;
    let nodes = |pods: Vec<Value>| {
        let mut nodes: Vec<String> = pods
            .iter()
            .map(|pod| pod["spec"]["nodeName"].as_str().unwrap().to_owned())
            .collect();
        nodes.sort();
        nodes
    };
    let pods = list(&server, &format!("{CORE}/pods")).await;
    assert_eq!(nodes(pods), ["node-1", "node-2", "node-3"]);
    Raw::new("DELETE", "/api/v1/nodes/node-2")
        .send(&server)
        .await
        .ok();
    let node = json!({"metadata": {"name": "node-9"}});
    create(&server, "/api/v1/nodes", &node).await;
    let pods = list(&server, &format!("{CORE}/pods")).await;
    assert_eq!(nodes(pods), ["node-1", "node-3", "node-9"]);
    let agent = get(&server, &format!("{APPS}/daemonsets/agent")).await;
    assert_eq!(agent["status"]["desiredNumberScheduled"], 3);
    assert_eq!(agent["status"]["numberReady"], 3);
}

fn job(name: &str, outcome: &str) -> Value {
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    json!({
        "metadata": {"name": name, "annotations": {"workloads.steersman.dev/outcome": outcome}},
        "spec": {"completions": 3, "parallelism": 2, "backoffLimit": 1, "template": {"spec": spec}},
    })
}

#[tokio::test]
async fn jobs_complete_or_fail_as_configured() {
    let server = server();
    create(&server, JOBS, &job("good", "succeed")).await;
    let good = get(&server, &format!("{JOBS}/good")).await;
    assert_eq!(good["status"]["succeeded"], 3, "{good}");
    assert_eq!(condition(&good, "Complete"), "True");
    create(&server, JOBS, &job("bad", "fail")).await;
    let bad = get(&server, &format!("{JOBS}/bad")).await;
    assert_eq!(condition(&bad, "Failed"), "True", "{bad}");
    assert_eq!(condition(&bad, "Complete"), Value::Null);
}

#[tokio::test]
async fn services_know_the_pods_that_are_ready() {
    let server = server();
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    create(&server, &format!("{CORE}/services"), &service).await;
    create(&server, &format!("{APPS}/replicasets"), &set("web", 2)).await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slices = list(&server, slices).await;
    assert_eq!(slices.len(), 1);
    let endpoints = slices[0]["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 2);
    assert!(
        endpoints
            .iter()
            .all(|endpoint| endpoint["conditions"]["ready"] == true)
    );
    assert_eq!(slices[0]["ports"][0]["port"], 80);
}

#[tokio::test]
async fn guarantee_3_delays_follow_the_clock_and_a_watch_sees_their_end() {
    let clock = ManualClock::default();
    let workloads = Workloads::default().startup(Duration::from_secs(10));
    let server = builder().clock(clock.clone()).workloads(workloads).build();
    create(&server, &format!("{APPS}/deployments"), &set("web", 1)).await;
    let path = format!("{APPS}/deployments/web");
    assert_eq!(condition(&get(&server, &path).await, "Available"), "False");
    let pods = list(&server, &format!("{CORE}/pods")).await;
    let waiting = &pods[0]["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "ContainerCreating");
    let revision = get(&server, &format!("{APPS}/deployments")).await["metadata"]["resourceVersion"].clone();
    let watch = format!(
        "{APPS}/deployments?watch=1&resourceVersion={}",
        revision.as_str().unwrap()
    );
    let mut watch = Watch::open(&server, &watch).await;
    watch.quiet().await;
    // Nobody asks for anything but this watch.
    clock.advance(Duration::from_secs(11));
    loop {
        let event = watch.next().await.unwrap();
        if condition(&event["object"], "Available") == "True" {
            break;
        }
    }
}

#[tokio::test]
async fn a_pod_without_a_node_is_pending() {
    let server = builder().workloads(Workloads::default().nodes(0)).build();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(&server, &format!("{CORE}/pods"), &pod).await;
    let pod = get(&server, &format!("{CORE}/pods/p")).await;
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(condition(&pod, "PodScheduled"), "False");
    create(&server, "/api/v1/nodes", &json!({"metadata": {"name": "late"}})).await;
    let pod = get(&server, &format!("{CORE}/pods/p")).await;
    assert_eq!(pod["status"]["phase"], "Running");
}
