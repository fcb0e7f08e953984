// SPDX-License-Identifier: Apache-2.0
//! Admission hooks in this process, and webhooks by Service. The conversations compare webhooks with the real server.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use harness::{Raw, webhooks::Webhooks};
use serde_json::{Value, json};
use steersman_apiserver::{AdmissionDenied, ApiServer, clock::ManualClock};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn post(path: &str, body: &Value) -> Raw {
    Raw::new("POST", path).json(body)
}

fn merge(path: &str, body: &Value) -> Raw {
    Raw::new("PATCH", path)
        .header("content-type", "application/merge-patch+json")
        .json(body)
}

/// A configuration with one webhook for ConfigMaps.
fn configuration(client: &Value, timeout: u32) -> Value {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]});
    let webhook = json!({
        "name": "maps.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "timeoutSeconds": timeout, "clientConfig": client, "rules": [rule],
        "objectSelector": {"matchLabels": {"hook": "yes"}},
    });
    json!({"metadata": {"name": "maps"}, "webhooks": [webhook]})
}

fn by_url(path: &str) -> Value {
    let webhooks = Webhooks::get();
    json!({"url": format!("{}/{path}", webhooks.url()), "caBundle": webhooks.authority})
}

fn hooked(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"hook": "yes"}}})
}

#[tokio::test]
async fn an_in_process_hook_changes_objects_before_validation() {
    let server = ApiServer::builder()
        .mutating_hook("labels.example.com", |request, object| {
            if request.resource() == "configmaps" {
                object["metadata"]["labels"] = json!({"by": request.user(), "for": request.operation()});
            }
            Ok(())
        })
        .build();
    let created = post(MAPS, &map("a")).send(&server).await.ok();
    assert_eq!(
        created["metadata"]["labels"],
        json!({"by": "admin", "for": "CREATE"})
    );
    let patched = merge(&format!("{MAPS}/a"), &json!({"data": {"a": "c"}}));
    let patched = patched.send(&server).await.ok();
    assert_eq!(patched["metadata"]["labels"]["for"], "UPDATE");
    let secret = json!({"metadata": {"name": "s"}});
    let secret = post("/api/v1/namespaces/default/secrets", &secret)
        .send(&server)
        .await
        .ok();
    assert!(secret["metadata"].get("labels").is_none());
}

#[tokio::test]
async fn an_object_that_a_hook_made_invalid_is_rejected() {
    let server = ApiServer::builder()
        .mutating_hook("keys.example.com", |_, object| {
            object["data"] = json!({"not a key": "x"});
            Ok(())
        })
        .build();
    let answer = post(MAPS, &map("a")).send(&server).await;
    assert_eq!(answer.code, 422, "{}", answer.body);
}

#[tokio::test]
async fn an_in_process_hook_denies_as_a_webhook_does() {
    let server = ApiServer::builder()
        .validating_hook("guard.example.com", |request| match request.operation() {
            "DELETE" => {
                assert!(request.object().is_none());
                let kept = request.old_object().unwrap();
                let message = format!("keep {}", kept["metadata"]["name"].as_str().unwrap());
                Err(AdmissionDenied::new(message).code(418))
            }
            _ if request.is_dry_run() => Err(AdmissionDenied::new("no dry runs")),
            _ => Ok(()),
        })
        .build();
    post(MAPS, &map("a")).send(&server).await.ok();
    let answer = Raw::new("DELETE", &format!("{MAPS}/a")).send(&server).await;
    assert_eq!(answer.code, 418);
    let message = "admission webhook \"guard.example.com\" denied the request: keep a";
    assert_eq!(answer.json()["message"], message);
    let dry = post(&format!("{MAPS}?dryRun=All"), &map("b")).send(&server).await;
    assert_eq!(
        (dry.code, dry.json()["reason"].clone()),
        (403, json!("Forbidden"))
    );
}

#[tokio::test]
async fn a_deletecollection_stops_at_the_first_denial() {
    let server = ApiServer::builder()
        .validating_hook("guard.example.com", |request| {
            // As on the real server, a deletion of a collection has no name.
            assert!(request.operation() != "DELETE" || request.name().is_empty());
            let is_b = |old: &Value| old["metadata"]["name"] == "b";
            if request.old_object().is_some_and(is_b) {
                Err(AdmissionDenied::new("keep b"))
            } else {
                Ok(())
            }
        })
        .build();
    for name in ["a", "b", "c"] {
        let mut object = map(name);
        object["metadata"]["labels"] = json!({"set": "all"});
        post(MAPS, &object).send(&server).await.ok();
    }
    let answer = Raw::new("DELETE", &format!("{MAPS}?labelSelector=set%3Dall"))
        .send(&server)
        .await;
    assert_eq!(answer.code, 403, "{}", answer.body);
    let left = Raw::get(&format!("{MAPS}?labelSelector=set%3Dall"))
        .send(&server)
        .await
        .ok();
    let names: Vec<&Value> = left["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert_eq!(names, ["b", "c"]);
}

/// A server whose hook runs `race` during its first call, as another client that writes at that moment.
fn racing(race: impl Fn(&ApiServer) + Send + Sync + 'static) -> (ApiServer, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let own: Arc<OnceLock<ApiServer>> = Arc::default();
    let (counted, handle) = (Arc::clone(&calls), Arc::clone(&own));
    let server = ApiServer::builder()
        .validating_hook("race.example.com", move |request| {
            let is_first = request.operation() == "UPDATE" && counted.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first {
                race(handle.get().unwrap());
            }
            Ok(())
        })
        .build();
    own.set(server.clone()).unwrap();
    (server, calls)
}

fn write_at_once(server: &ApiServer, raw: &Raw) {
    raw.send(server).now_or_never().expect("nothing waits").ok();
}

#[tokio::test]
async fn guarantee_1_a_patch_is_admitted_again_if_the_object_changed_meanwhile() {
    let (server, calls) = racing(|server| {
        write_at_once(
            server,
            &merge(&format!("{MAPS}/a"), &json!({"data": {"other": "x"}})),
        );
    });
    post(MAPS, &map("a")).send(&server).await.ok();
    let patch = merge(&format!("{MAPS}/a"), &json!({"data": {"mine": "y"}}));
    let patched = patch.send(&server).await.ok();
    assert_eq!(patched["data"], json!({"a": "b", "other": "x", "mine": "y"}));
    // The patch, the patch of the other client, and the first patch again.
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_update_of_an_old_version_conflicts_if_the_object_changed_during_admission() {
    let (server, _) = racing(|server| {
        write_at_once(
            server,
            &merge(&format!("{MAPS}/a"), &json!({"data": {"other": "x"}})),
        );
    });
    let created = post(MAPS, &map("a")).send(&server).await.ok();
    let answer = Raw::new("PUT", &format!("{MAPS}/a"))
        .json(&created)
        .send(&server)
        .await;
    assert_eq!(answer.code, 409, "{}", answer.body);
}

#[tokio::test]
async fn guarantee_2_every_attempt_has_the_same_uid_and_name() {
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let note = Arc::clone(&seen);
    let server = ApiServer::builder()
        .mutating_hook("labels.example.com", |_, object| {
            object["metadata"]["labels"] = json!({"a": "b"});
            Ok(())
        })
        .validating_hook("note.example.com", move |request| {
            let uid = request.object().unwrap()["metadata"]["uid"].as_str().unwrap();
            note.lock()
                .unwrap()
                .push((request.name().to_owned(), uid.to_owned()));
            Ok(())
        })
        .build();
    let object = json!({"metadata": {"generateName": "gen-"}});
    for _ in 0..2 {
        let created = post(MAPS, &object).send(&server).await.ok();
        let text = |key: &str| created["metadata"][key].as_str().unwrap().to_owned();
        assert_eq!(seen.lock().unwrap().pop().unwrap(), (text("name"), text("uid")));
    }
    assert!(seen.lock().unwrap().is_empty(), "each create was admitted once");
}

#[tokio::test]
async fn a_service_leads_to_the_address_that_the_builder_names() {
    let address: SocketAddr = Webhooks::get().address;
    let server = ApiServer::builder()
        .service_address("default", "hooks", 8443, address)
        .build();
    let service = json!({"namespace": "default", "name": "hooks", "port": 8443, "path": "/deny"});
    let client = json!({"service": service, "caBundle": Webhooks::get().authority});
    post(VALIDATING, &configuration(&client, 10))
        .send(&server)
        .await
        .ok();
    let answer = post(MAPS, &hooked("a")).send(&server).await;
    let message = "admission webhook \"maps.example.com\" denied the request: no";
    assert_eq!(answer.json()["message"], message);
}

#[tokio::test]
async fn a_service_without_an_address_has_no_endpoints() {
    let server = ApiServer::builder().build();
    let spec = json!({"ports": [{"port": 443}]});
    let service = json!({"metadata": {"name": "hooks"}, "spec": spec});
    post("/api/v1/namespaces/default/services", &service)
        .send(&server)
        .await
        .ok();
    let client = json!({"service": {"namespace": "default", "name": "hooks"}});
    post(VALIDATING, &configuration(&client, 10))
        .send(&server)
        .await
        .ok();
    let answer = post(MAPS, &hooked("a")).send(&server).await;
    assert_eq!(answer.code, 500);
    assert!(
        answer.body.contains("no endpoints available for service"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn webhooks_can_be_switched_off() {
    let server = ApiServer::builder().webhooks(false).build();
    post(VALIDATING, &configuration(&by_url("deny"), 10))
        .send(&server)
        .await
        .ok();
    post(MAPS, &hooked("a")).send(&server).await.ok();
}

#[tokio::test]
async fn a_slow_webhook_delays_no_other_request_and_times_out_on_the_servers_clock() {
    let clock = ManualClock::default();
    let server = ApiServer::builder().clock(clock.clone()).build();
    post(VALIDATING, &configuration(&by_url("slow"), 3))
        .send(&server)
        .await
        .ok();
    let slow_object = hooked("slow");
    let raw = post(MAPS, &slow_object);
    let mut slow = std::pin::pin!(raw.send(&server));
    // The request is on its way to the webhook.
    assert!(slow.as_mut().now_or_never().is_none());
    post(MAPS, &map("other")).send(&server).await.ok();
    assert_eq!(
        Raw::get(MAPS).send(&server).await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    clock.advance(Duration::from_secs(3));
    let answer = slow.await;
    assert_eq!(answer.code, 500);
    assert!(
        answer.body.contains("context deadline exceeded"),
        "{}",
        answer.body
    );
}

/// Two mutating webhooks for ConfigMaps that never answer, each with 30 s.
fn two_slow_webhooks() -> Value {
    let one = configuration(&by_url("slow"), 30)["webhooks"][0].clone();
    let mut two = one.clone();
    two["name"] = json!("again.example.com");
    two["failurePolicy"] = json!("Ignore");
    let mut one = one;
    one["failurePolicy"] = json!("Ignore");
    json!({"metadata": {"name": "slow"}, "webhooks": [one, two]})
}

#[tokio::test]
async fn all_webhooks_of_a_write_have_34_seconds_together() {
    let clock = ManualClock::default();
    let server = ApiServer::builder().clock(clock.clone()).build();
    let mutating = VALIDATING.replace("validating", "mutating");
    post(&mutating, &two_slow_webhooks()).send(&server).await.ok();
    let slow_object = hooked("slow");
    let raw = post(MAPS, &slow_object);
    let mut slow = std::pin::pin!(raw.send(&server));
    assert!(slow.as_mut().now_or_never().is_none());
    // The first webhook times out and is ignored.
    clock.advance(Duration::from_secs(30));
    assert!(slow.as_mut().now_or_never().is_none());
    clock.advance(Duration::from_secs(4));
    let answer = slow.await;
    assert_eq!(answer.code, 504);
    assert_eq!(
        answer.json()["message"],
        "Timeout: request did not complete within requested timeout - context deadline exceeded"
    );
    let stored = Raw::get(&format!("{MAPS}/slow")).send(&server).await;
    assert_eq!(stored.code, 404, "nothing was stored");
}

#[tokio::test]
async fn a_read_that_a_conversion_webhook_delays_has_60_seconds() {
    let clock = ManualClock::default();
    let server = ApiServer::builder().clock(clock.clone()).build();
    let version = |name: &str, is_stored: bool| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": {"openAPIV3Schema": {"type": "object"}},
        })
    };
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": by_url("slow")});
    let definition = json!({
        "metadata": {"name": "things.slow.example.com"},
        "spec": {
            "group": "slow.example.com", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        },
    });
    post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        &definition,
    )
    .send(&server)
    .await
    .ok();
    let thing = json!({"apiVersion": "slow.example.com/v1", "kind": "Thing", "metadata": {"name": "a"}});
    post("/apis/slow.example.com/v1/things", &thing)
        .send(&server)
        .await
        .ok();
    for path in [
        "/apis/slow.example.com/v2/things",
        "/apis/slow.example.com/v2/things/a",
    ] {
        let raw = Raw::get(path);
        let mut slow = std::pin::pin!(raw.send(&server));
        assert!(slow.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(59));
        assert!(slow.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(1));
        let answer = slow.await;
        assert_eq!(answer.code, 504);
        assert_eq!(
            answer.json()["message"],
            "Timeout: request did not complete within the allotted timeout"
        );
    }
}

#[tokio::test]
async fn no_hook_sees_the_writes_of_the_server_itself() {
    let server = ApiServer::builder()
        .validating_hook("guard.example.com", |request| {
            let denies = request.operation() == "DELETE" && request.resource() == "configmaps";
            if denies {
                Err(AdmissionDenied::new("no"))
            } else {
                Ok(())
            }
        })
        .build();
    let namespace = json!({"metadata": {"name": "gone"}});
    post("/api/v1/namespaces", &namespace).send(&server).await.ok();
    post("/api/v1/namespaces/gone/configmaps", &map("a"))
        .send(&server)
        .await
        .ok();
    Raw::new("DELETE", "/api/v1/namespaces/gone")
        .send(&server)
        .await
        .ok();
    assert_eq!(Raw::get("/api/v1/namespaces/gone").send(&server).await.code, 404);
}
