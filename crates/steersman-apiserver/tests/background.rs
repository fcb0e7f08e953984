// SPDX-License-Identifier: Apache-2.0
//! What follows from writes: garbage collection, the end of namespaces and of definitions.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod harness;

use harness::{Raw, Watch, builder};
use serde_json::{Value, json};
use steersman_apiserver::ApiServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

async fn create(server: &ApiServer, path: &str, body: &Value) -> Value {
    Raw::new("POST", path).json(body).send(server).await.ok()
}

fn owned(name: &str, owner: &Value, block: bool) -> Value {
    let metadata = &owner["metadata"];
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"], "blockOwnerDeletion": block});
    json!({"metadata": {"name": name, "ownerReferences": [reference]}})
}

async fn exists(server: &ApiServer, name: &str) -> bool {
    Raw::get(&format!("{MAPS}/{name}")).send(server).await.code == 200
}

async fn delete(server: &ApiServer, name: &str, policy: &str) -> Value {
    Raw::new("DELETE", &format!("{MAPS}/{name}"))
        .json(&json!({"propagationPolicy": policy}))
        .send(server)
        .await
        .ok()
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owner_recursively() {
    let server = builder().build();
    let owner = create(&server, MAPS, &json!({"metadata": {"name": "owner"}})).await;
    let child = create(&server, MAPS, &owned("child", &owner, false)).await;
    create(&server, MAPS, &owned("grandchild", &child, false)).await;
    delete(&server, "owner", "Background").await;
    assert!(!exists(&server, "child").await);
    assert!(!exists(&server, "grandchild").await);
}

#[tokio::test]
async fn a_dependent_with_another_owner_is_kept_without_the_reference() {
    let server = builder().build();
    let one = create(&server, MAPS, &json!({"metadata": {"name": "one"}})).await;
    let two = create(&server, MAPS, &json!({"metadata": {"name": "two"}})).await;
    let mut child = owned("child", &one, false);
    let second = owned("x", &two, false)["metadata"]["ownerReferences"][0].clone();
    child["metadata"]["ownerReferences"]
        .as_array_mut()
        .unwrap()
        .push(second);
    create(&server, MAPS, &child).await;
    delete(&server, "one", "Background").await;
    let child = Raw::get(&format!("{MAPS}/child")).send(&server).await.ok();
    assert_eq!(child["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    assert_eq!(child["metadata"]["ownerReferences"][0]["name"], "two");
}

#[tokio::test]
async fn an_object_whose_owner_never_was_is_collected() {
    let server = builder().build();
    let nobody = json!({"metadata": {"name": "nobody", "uid": "11111111-1111-1111-1111-111111111111"}});
    create(&server, MAPS, &owned("child", &nobody, false)).await;
    assert!(!exists(&server, "child").await);
}

#[tokio::test]
async fn an_owner_deleted_in_the_foreground_waits_for_dependents_that_block_it() {
    let server = builder().build();
    let owner = create(&server, MAPS, &json!({"metadata": {"name": "owner"}})).await;
    let mut child = owned("child", &owner, true);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&server, MAPS, &child).await;
    let marked = delete(&server, "owner", "Foreground").await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(exists(&server, "owner").await);
    assert!(exists(&server, "child").await);
    let release =
        Raw::new("PATCH", &format!("{MAPS}/child")).header("content-type", "application/merge-patch+json");
    release
        .json(&json!({"metadata": {"finalizers": null}}))
        .send(&server)
        .await
        .ok();
    assert!(!exists(&server, "child").await);
    assert!(!exists(&server, "owner").await);
}

#[tokio::test]
async fn an_orphaning_owner_leaves_its_dependents_without_reference() {
    let server = builder().build();
    let owner = create(&server, MAPS, &json!({"metadata": {"name": "owner"}})).await;
    create(&server, MAPS, &owned("child", &owner, true)).await;
    delete(&server, "owner", "Orphan").await;
    assert!(!exists(&server, "owner").await);
    let child = Raw::get(&format!("{MAPS}/child")).send(&server).await.ok();
    assert!(child["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn collection_can_be_switched_off() {
    let server = builder().garbage_collection(false).build();
    let owner = create(&server, MAPS, &json!({"metadata": {"name": "owner"}})).await;
    create(&server, MAPS, &owned("child", &owner, false)).await;
    delete(&server, "owner", "Background").await;
    assert!(exists(&server, "child").await);
}

#[tokio::test]
async fn work_waits_for_steps_where_it_is_stepped() {
    let server = builder().stepped().build();
    let owner = create(&server, MAPS, &json!({"metadata": {"name": "owner"}})).await;
    create(&server, MAPS, &owned("child", &owner, false)).await;
    server.settle();
    delete(&server, "owner", "Background").await;
    assert!(exists(&server, "child").await);
    assert!(server.step());
    assert!(server.settle() > 0);
    assert!(!exists(&server, "child").await);
    assert!(!server.step());
}

#[tokio::test]
async fn a_deleted_namespace_is_emptied_and_removed() {
    let server = builder().build();
    create(
        &server,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "gone"}}),
    )
    .await;
    create(
        &server,
        "/api/v1/namespaces/gone/configmaps",
        &json!({"metadata": {"name": "a"}}),
    )
    .await;
    create(
        &server,
        "/api/v1/namespaces/gone/secrets",
        &json!({"metadata": {"name": "b"}}),
    )
    .await;
    let answer = Raw::new("DELETE", "/api/v1/namespaces/gone")
        .send(&server)
        .await
        .ok();
    assert_eq!(answer["status"]["phase"], "Terminating");
    assert_eq!(Raw::get("/api/v1/namespaces/gone").send(&server).await.code, 404);
    let left = Raw::get("/api/v1/namespaces/gone/configmaps")
        .send(&server)
        .await
        .ok();
    assert_eq!(left["items"], json!([]));
}

#[tokio::test]
async fn a_namespace_reports_its_remaining_content() {
    let server = builder().build();
    create(
        &server,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "kept"}}),
    )
    .await;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    create(&server, "/api/v1/namespaces/kept/configmaps", &held).await;
    Raw::new("DELETE", "/api/v1/namespaces/kept")
        .send(&server)
        .await
        .ok();
    let namespace = Raw::get("/api/v1/namespaces/kept").send(&server).await.ok();
    let conditions = namespace["status"]["conditions"].as_array().unwrap();
    let of = |kind: &str| {
        conditions
            .iter()
            .find(|condition| condition["type"] == kind)
            .unwrap()
            .clone()
    };
    assert_eq!(of("NamespaceContentRemaining")["status"], "True");
    let message =
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    assert_eq!(of("NamespaceFinalizersRemaining")["message"], message);
    let release = Raw::new("PATCH", "/api/v1/namespaces/kept/configmaps/held")
        .header("content-type", "application/merge-patch+json");
    release
        .json(&json!({"metadata": {"finalizers": null}}))
        .send(&server)
        .await
        .ok();
    assert_eq!(Raw::get("/api/v1/namespaces/kept").send(&server).await.code, 404);
}

fn definition() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}})
}

#[tokio::test]
async fn a_definition_is_accepted_and_then_established_by_two_writes() {
    let server = builder().build();
    let mut watch = Watch::open(&server, &format!("{DEFINITIONS}?watch=1")).await;
    let created = create(&server, DEFINITIONS, &definition()).await;
    assert_eq!(created["status"]["conditions"], Value::Null);
    assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    let accepted = watch.next().await.unwrap();
    assert_eq!(
        accepted["object"]["status"]["conditions"][0]["type"],
        "NamesAccepted"
    );
    assert_eq!(
        accepted["object"]["status"]["conditions"][1]["reason"],
        "Installing"
    );
    let established = watch.next().await.unwrap();
    assert_eq!(established["object"]["status"]["conditions"][1]["status"], "True");
    watch.quiet().await;
}

#[tokio::test]
async fn a_deleted_definition_takes_its_objects_and_ends_their_watches() {
    let server = builder().build();
    create(&server, DEFINITIONS, &definition()).await;
    create(&server, WIDGETS, &widget("a")).await;
    let mut watch = Watch::open(&server, &format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    let answer = Raw::new("DELETE", &format!("{DEFINITIONS}/widgets.example.com"))
        .send(&server)
        .await
        .ok();
    assert_eq!(
        answer["status"]["conditions"][2]["reason"],
        "InstanceDeletionPending"
    );
    let gone = watch.next().await.unwrap();
    assert_eq!(gone["type"], "DELETED");
    let revision = gone["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(watch.next().await, None, "the stream ends without an error");
    let answer = Raw::get(WIDGETS).send(&server).await;
    assert_eq!((answer.code, answer.body.as_str()), (404, "404 page not found\n"));
    // Recreated, its old revisions have expired.
    create(&server, DEFINITIONS, &definition()).await;
    let events = Raw::get(&format!(
        "{WIDGETS}?watch=1&resourceVersion={revision}&timeoutSeconds=1"
    ))
    .send(&server)
    .await
    .events();
    assert_eq!(events[0]["type"], "ERROR");
    assert_eq!(events[0]["object"]["code"], 410);
}

#[tokio::test]
async fn an_object_with_a_finalizer_keeps_its_definition() {
    let server = builder().build();
    create(&server, DEFINITIONS, &definition()).await;
    let mut held = widget("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&server, WIDGETS, &held).await;
    Raw::new("DELETE", &format!("{DEFINITIONS}/widgets.example.com"))
        .send(&server)
        .await
        .ok();
    let refused = Raw::new("POST", WIDGETS).json(&widget("new")).send(&server).await;
    assert_eq!(refused.code, 403);
    assert!(
        refused.json()["message"]
            .as_str()
            .unwrap()
            .contains("terminating")
    );
    let release =
        Raw::new("PATCH", &format!("{WIDGETS}/held")).header("content-type", "application/merge-patch+json");
    release
        .json(&json!({"metadata": {"finalizers": null}}))
        .send(&server)
        .await
        .ok();
    assert_eq!(
        Raw::get(&format!("{DEFINITIONS}/widgets.example.com"))
            .send(&server)
            .await
            .code,
        404
    );
}

#[tokio::test]
async fn a_changed_definition_ends_watches_and_expires_older_revisions() {
    let server = builder().build();
    create(&server, DEFINITIONS, &definition()).await;
    let created = create(&server, WIDGETS, &widget("a")).await;
    let mut watch = Watch::open(&server, &format!("{WIDGETS}?watch=1&resourceVersion=0")).await;
    watch.next().await.unwrap();
    let patch = Raw::new("PATCH", &format!("{DEFINITIONS}/widgets.example.com"))
        .header("content-type", "application/json-patch+json");
    patch
        .body(r#"[{"op":"add","path":"/spec/names/shortNames","value":["w"]}]"#)
        .send(&server)
        .await
        .ok();
    assert_eq!(watch.next().await, None);
    let revision = created["metadata"]["resourceVersion"].as_str().unwrap();
    let events = Raw::get(&format!(
        "{WIDGETS}?watch=1&timeoutSeconds=1&resourceVersion={revision}"
    ))
    .send(&server)
    .await
    .events();
    assert_eq!(events[0]["object"]["reason"], "Expired");
    assert_eq!(
        Raw::get(WIDGETS).send(&server).await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

async fn merge(server: &ApiServer, path: &str, patch: &Value) -> Value {
    Raw::new("PATCH", path)
        .header("content-type", "application/merge-patch+json")
        .json(patch)
        .send(server)
        .await
        .ok()
}

#[tokio::test]
async fn a_definition_gets_its_names_once_they_are_free() {
    let server = builder().build();
    let named = |plural: &str, kind: &str, short: &str| {
        let mut definition = definition();
        definition["metadata"]["name"] = json!(format!("{plural}.example.com"));
        definition["spec"]["names"] = json!({"plural": plural, "kind": kind, "shortNames": [short]});
        definition
    };
    create(&server, DEFINITIONS, &named("widgets", "Widget", "w")).await;
    create(&server, DEFINITIONS, &named("gadgets", "Gadget", "w")).await;
    create(&server, DEFINITIONS, &named("wheels", "Wheel", "w")).await;
    let accepted = async |plural: &str| {
        let path = format!("{DEFINITIONS}/{plural}.example.com");
        let definition = Raw::get(&path).send(&server).await.ok();
        let conditions = definition["status"]["conditions"].as_array().unwrap().clone();
        conditions.iter().all(|condition| condition["status"] == "True")
    };
    assert!(!accepted("gadgets").await && !accepted("wheels").await);
    // By a change of names, and by a deletion.
    let path = format!("{DEFINITIONS}/widgets.example.com");
    merge(&server, &path, &json!({"spec": {"names": {"shortNames": ["x"]}}})).await;
    assert!(accepted("gadgets").await && !accepted("wheels").await);
    Raw::new("DELETE", &format!("{DEFINITIONS}/gadgets.example.com"))
        .send(&server)
        .await
        .ok();
    assert!(accepted("wheels").await);
    assert!(Raw::get("/apis/example.com/v1/wheels").send(&server).await.code == 200);
}

async fn install(server: &ApiServer) {
    create(server, DEFINITIONS, &definition()).await;
}

async fn uninstall(server: &ApiServer) {
    Raw::new("DELETE", &format!("{DEFINITIONS}/widgets.example.com"))
        .send(server)
        .await
        .ok();
}

fn reference(kind: &str, name: &str, uid: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": kind, "name": name, "uid": uid})
}

fn owned_by(name: &str, references: &[Value]) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": references}})
}

#[tokio::test]
async fn guarantee_6_dependents_of_custom_objects_are_deleted_with_the_definition() {
    let server = builder().build();
    install(&server).await;
    let a = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    let b = create(&server, WIDGETS, &widget("b")).await["metadata"]["uid"].clone();
    let both = [reference("Widget", "a", &a), reference("Widget", "b", &b)];
    create(&server, MAPS, &owned_by("of-one", &both[..1])).await;
    create(&server, MAPS, &owned_by("of-both", &both)).await;
    create(&server, MAPS, &json!({"metadata": {"name": "of-none"}})).await;
    uninstall(&server).await;
    assert_eq!(Raw::get(WIDGETS).send(&server).await.code, 404);
    assert!(!exists(&server, "of-one").await);
    assert!(!exists(&server, "of-both").await);
    assert!(exists(&server, "of-none").await);
}

#[tokio::test]
async fn guarantee_6_a_dependent_with_another_owner_is_kept_when_a_definition_is_deleted() {
    let server = builder().build();
    install(&server).await;
    let gone = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    let left = create(&server, MAPS, &json!({"metadata": {"name": "left"}})).await;
    let mut child = owned("child", &left, false);
    let references = child["metadata"]["ownerReferences"].as_array_mut().unwrap();
    references.push(reference("Widget", "a", &gone));
    create(&server, MAPS, &child).await;
    uninstall(&server).await;
    let child = Raw::get(&format!("{MAPS}/child")).send(&server).await.ok();
    assert_eq!(child["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    assert_eq!(child["metadata"]["ownerReferences"][0]["name"], "left");
}

#[tokio::test]
async fn guarantee_6_a_uid_that_went_speaks_only_for_the_owner_it_belonged_to() {
    let server = builder().build();
    install(&server).await;
    let uid = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    let others = [reference("Gadget", "a", &uid)];
    create(&server, MAPS, &owned_by("of-another-kind", &others)).await;
    // A cluster-scoped object cannot be owned by a namespaced one.
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    create(
        &server,
        roles,
        &owned_by("of-no-scope", &[reference("Widget", "a", &uid)]),
    )
    .await;
    uninstall(&server).await;
    assert!(exists(&server, "of-another-kind").await);
    let role = Raw::get(&format!("{roles}/of-no-scope"));
    assert_eq!(role.send(&server).await.code, 200);
}

#[tokio::test]
async fn guarantee_6_a_dependent_that_is_updated_before_its_collection_is_deleted_too() {
    let server = builder().stepped().build();
    install(&server).await;
    server.settle();
    let uid = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    create(
        &server,
        MAPS,
        &owned_by("child", &[reference("Widget", "a", &uid)]),
    )
    .await;
    server.settle();
    uninstall(&server).await;
    while Raw::get(WIDGETS).send(&server).await.code == 200 {
        assert!(server.step(), "the kind is served for ever");
    }
    merge(&server, &format!("{MAPS}/child"), &json!({"data": {"is": "new"}})).await;
    server.settle();
    assert!(!exists(&server, "child").await);
}

#[tokio::test]
async fn guarantee_7_dependents_of_an_unknown_kind_wait_for_it_to_be_served() {
    let server = builder().build();
    let uid = json!("11111111-1111-1111-1111-111111111111");
    create(
        &server,
        MAPS,
        &owned_by("child", &[reference("Widget", "a", &uid)]),
    )
    .await;
    create(
        &server,
        MAPS,
        &owned_by("other", &[reference("Gadget", "a", &uid)]),
    )
    .await;
    merge(
        &server,
        &format!("{MAPS}/child"),
        &json!({"data": {"looked": "at"}}),
    )
    .await;
    assert!(exists(&server, "child").await);
    install(&server).await;
    assert!(!exists(&server, "child").await);
    assert!(exists(&server, "other").await, "its kind is still not served");
}

#[tokio::test]
async fn guarantee_7_a_new_object_of_the_name_is_not_the_owner_that_its_definition_took() {
    let server = builder().stepped().build();
    install(&server).await;
    server.settle();
    let old = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    uninstall(&server).await;
    server.settle();
    // Nobody saw the owner of this one go: it came too late.
    create(
        &server,
        MAPS,
        &owned_by("late", &[reference("Widget", "a", &old)]),
    )
    .await;
    server.settle();
    assert!(exists(&server, "late").await);
    install(&server).await;
    while Raw::get(WIDGETS).send(&server).await.code == 404 {
        assert!(server.step(), "the kind is never served");
    }
    let new = create(&server, WIDGETS, &widget("a")).await["metadata"]["uid"].clone();
    assert_ne!(old, new);
    create(&server, MAPS, &owned_by("own", &[reference("Widget", "a", &new)])).await;
    server.settle();
    assert!(!exists(&server, "late").await);
    assert!(exists(&server, "own").await);
}

#[tokio::test]
async fn a_definition_whose_objects_orphan_leaves_their_dependents() {
    let server = builder().build();
    install(&server).await;
    let mut owner = widget("a");
    owner["metadata"]["finalizers"] = json!(["orphan"]);
    let uid = create(&server, WIDGETS, &owner).await["metadata"]["uid"].clone();
    create(
        &server,
        MAPS,
        &owned_by("child", &[reference("Widget", "a", &uid)]),
    )
    .await;
    uninstall(&server).await;
    assert_eq!(Raw::get(WIDGETS).send(&server).await.code, 404);
    let child = Raw::get(&format!("{MAPS}/child")).send(&server).await.ok();
    assert!(child["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn an_owner_that_waits_for_its_dependents_keeps_its_definition() {
    let server = builder().build();
    install(&server).await;
    let mut owner = widget("a");
    owner["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    let uid = create(&server, WIDGETS, &owner).await["metadata"]["uid"].clone();
    let mut child = owned_by("child", &[reference("Widget", "a", &uid)]);
    child["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    child["metadata"]["finalizers"] = json!(["example.com/hold"]);
    create(&server, MAPS, &child).await;
    uninstall(&server).await;
    let path = format!("{WIDGETS}/a");
    assert_eq!(Raw::get(&path).send(&server).await.code, 200);
    let release = json!({"metadata": {"finalizers": null}});
    merge(&server, &format!("{MAPS}/child"), &release).await;
    assert!(!exists(&server, "child").await);
    assert_eq!(Raw::get(WIDGETS).send(&server).await.code, 404);
}
