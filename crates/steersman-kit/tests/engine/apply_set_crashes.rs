// SPDX-License-Identifier: Apache-2.0
//! Apply sets of a process that is killed between any two requests, and large sets.

use std::{collections::BTreeSet, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service, ServiceAccount},
    rbac::v1::Role,
};
use kube::{CustomResourceExt, ResourceExt};
use serde_json::json;
use steersman_cache::Query;
use steersman_cluster::{Client, ObjectExt};
use steersman_kit::{ApplySet, ChildKind, generating};
use steersman_runtime::{
    AnyReconciler, BoxError, Request,
    testing::{KnownPrimary, Stand},
};
use steersman_testing::{
    FaultProxy, Fixture, ServerKind,
    proxy::{Exchange, Fault, Matching},
};

use super::{
    apply_sets::{FINALIZER, PART_OF, map, namespace, secret},
    support::*,
};

type Five = (ConfigMap, Secret, Service, ServiceAccount, Role);
/// A later version of the operator, which does not mention two of the kinds any more.
type Three = (ConfigMap, ServiceAccount, Role);

fn account(namespace: &str, name: &str) -> ServiceAccount {
    object(json!({"metadata": {"name": name, "namespace": namespace}}))
}

fn role(namespace: &str, name: &str) -> Role {
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    object(json!({"metadata": {"name": name, "namespace": namespace}, "rules": rules}))
}

fn service(namespace: &str, name: &str) -> Service {
    object(json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"ports": [{"port": 80}]}}))
}

/// Five kinds in the first two namespaces.
fn first(
    namespaces: &[String; 3],
) -> impl Fn(&Widget, &mut ApplySet<Five>) -> Result<(), BoxError> + Send + Sync + use<> {
    let [a, b, _] = namespaces.clone();
    move |widget, set| {
        let name = &widget.name_any();
        for ns in [&a, &b] {
            set.add(map(ns, name, "first"))
                .add(secret(ns, name))
                .add(service(ns, name));
            set.add(account(ns, name)).add(role(ns, name));
        }
        Ok(())
    }
}

/// Three kinds in the first and the last namespace, with other values.
fn second(
    namespaces: &[String; 3],
) -> impl Fn(&Widget, &mut ApplySet<Three>) -> Result<(), BoxError> + Send + Sync + use<> {
    let [a, _, c] = namespaces.clone();
    move |widget, set| {
        let name = &widget.name_any();
        for ns in [&a, &c] {
            set.add(map(ns, name, "second"))
                .add(account(ns, name))
                .add(role(ns, name));
        }
        Ok(())
    }
}

/// Lets `k` requests of a reconcile pass, and kills it. Returns false if the reconcile has ended before.
async fn killed_after<By: KnownPrimary>(
    k: usize,
    proxy: &FaultProxy,
    stand: &Stand,
    name: &str,
    reconciler: &impl AnyReconciler<Request, By>,
    fixture: &Fixture,
) -> bool {
    // The server does not see the next request.
    let cut = proxy.inject(Matching::any().after(k), Fault::delay(Duration::from_secs(3600)));
    let mut calling = Box::pin(stand.call(key(fixture, name), reconciler).fuse());
    let is_killed = tokio::select! {
        outcome = &mut calling => {
            let _ = outcome.result.unwrap();
            false
        }
        () = cut.hit() => true,
    };
    drop(calling);
    is_killed
}

/// All members of the set of a widget: kind, namespace, and value of a ConfigMap.
async fn members(client: &Client, widget: &Widget) -> BTreeSet<(String, String)> {
    let id = &widget.labels()["applyset.kubernetes.io/id"];
    let mut found = BTreeSet::new();
    add::<ConfigMap>(client, id, &mut found).await;
    add::<Secret>(client, id, &mut found).await;
    add::<Service>(client, id, &mut found).await;
    add::<ServiceAccount>(client, id, &mut found).await;
    add::<Role>(client, id, &mut found).await;
    found
}

async fn add<K: ChildKind>(client: &Client, id: &str, found: &mut BTreeSet<(String, String)>) {
    for member in client.list::<K>(&Query::new().label(PART_OF, id)).await.unwrap() {
        found.insert((K::kind(&()).into_owned(), member.namespace().unwrap()));
    }
}

fn expected(kinds: &[&str], namespaces: [&String; 2]) -> BTreeSet<(String, String)> {
    let pairs = kinds
        .iter()
        .flat_map(|kind| namespaces.map(|ns| ((*kind).to_owned(), ns.clone())));
    pairs.collect()
}

async fn namespaces(fixture: &Fixture) -> [String; 3] {
    let here = fixture.namespace().to_owned();
    [here, namespace(fixture, "b").await, namespace(fixture, "c").await]
}

async fn proxied(fixture: &Fixture, proxy: &FaultProxy) -> Stand {
    fixture.install(&Widget::crd()).await;
    let client = proxy.client(fixture.admin()).unwrap();
    let stand = Stand::new(client).await.unwrap().controller("widgets");
    stand
        .cluster()
        .live()
        .create(&widget(fixture, "warm", "1"))
        .await
        .unwrap();
    stand
}

const ALL: [&str; 5] = ["ConfigMap", "Role", "Secret", "Service", "ServiceAccount"];
/// A reconcile of these sets sends fewer requests than this.
const REQUESTS_MAX: usize = 150;

// R138, guarantee 1: `kill -9` between any two requests of an apply and prune, 5 kinds in 3 namespaces
#[steersman_testing::test]
async fn guarantee_1_a_crash_after_any_request_of_an_apply_and_prune_leaves_the_desired_set(
    fixture: Fixture,
) {
    let (proxy, namespaces) = (fixture.proxy().await, namespaces(&fixture).await);
    let before = proxied(&fixture, &proxy).await;
    let client = before.cluster().live();
    // Informers are started, so that only requests of the reconcile count.
    call(
        &before,
        key(&fixture, "warm"),
        &generating(FINALIZER, first(&namespaces)),
    )
    .await;
    let [a, _, c] = &namespaces;
    let (mut k, mut is_killed) = (0, true);
    while is_killed {
        let name = format!("w{k}");
        client.create(&widget(&fixture, &name, "1")).await.unwrap();
        call(
            &before,
            key(&fixture, &name),
            &generating(FINALIZER, first(&namespaces)),
        )
        .await;
        let crashing = generating(FINALIZER, second(&namespaces));
        is_killed = killed_after(k, &proxy, &before, &name, &crashing, &fixture).await;
        // Another process, with nothing in its memory.
        let after = stand(&fixture).await;
        call(
            &after,
            key(&fixture, &name),
            &generating(FINALIZER, second(&namespaces)),
        )
        .await;
        let found = client
            .get_required::<Widget>(&key(&fixture, &name))
            .await
            .unwrap();
        let kinds = ["ConfigMap", "Role", "ServiceAccount"];
        assert_eq!(
            members(&client, &found).await,
            expected(&kinds, [a, c]),
            "after {k} requests"
        );
        for ns in [a, c] {
            let map = client
                .get_required::<ConfigMap>(&steersman_core::ObjectKey::new(ns, &name))
                .await
                .unwrap();
            assert_eq!(
                map.data.as_ref().unwrap()["value"],
                "second",
                "after {k} requests"
            );
        }
        let inventory = &found.annotations()["applyset.kubernetes.io/contains-group-kinds"];
        assert_eq!(
            inventory,
            "ConfigMap,Role.rbac.authorization.k8s.io,ServiceAccount"
        );
        assert_eq!(
            &found.annotations()["applyset.kubernetes.io/additional-namespaces"],
            c
        );
        k += 1;
        assert!(k < REQUESTS_MAX, "a reconcile does not end");
    }
    assert!(k > 20, "a reconcile has only {k} requests");
}

// R138, guarantee 1: `kill -9` between any two requests of the first apply
#[steersman_testing::test]
async fn guarantee_1_a_crash_after_any_request_of_the_first_apply_leaves_the_desired_set(fixture: Fixture) {
    let (proxy, namespaces) = (fixture.proxy().await, namespaces(&fixture).await);
    let before = proxied(&fixture, &proxy).await;
    let client = before.cluster().live();
    call(
        &before,
        key(&fixture, "warm"),
        &generating(FINALIZER, first(&namespaces)),
    )
    .await;
    let [a, b, _] = &namespaces;
    let (mut k, mut is_killed) = (0, true);
    while is_killed {
        let name = format!("w{k}");
        client.create(&widget(&fixture, &name, "1")).await.unwrap();
        let crashing = generating(FINALIZER, first(&namespaces));
        is_killed = killed_after(k, &proxy, &before, &name, &crashing, &fixture).await;
        let after = stand(&fixture).await;
        // The next process has a function that generates nothing: nothing is left behind, of any kind.
        if k % 2 == 1 {
            let nothing = generating(FINALIZER, |_: &Widget, _: &mut ApplySet<(ConfigMap,)>| Ok(()));
            call(&after, key(&fixture, &name), &nothing).await;
            let found = client
                .get_required::<Widget>(&key(&fixture, &name))
                .await
                .unwrap();
            assert!(members(&client, &found).await.is_empty(), "after {k} requests");
        }
        call(
            &after,
            key(&fixture, &name),
            &generating(FINALIZER, first(&namespaces)),
        )
        .await;
        let found = client
            .get_required::<Widget>(&key(&fixture, &name))
            .await
            .unwrap();
        assert_eq!(
            members(&client, &found).await,
            expected(&ALL, [a, b]),
            "after {k} requests"
        );
        // The fields of the creation are owned by the apply, so that later applies can remove them.
        let map = client
            .get_required::<ConfigMap>(&steersman_core::ObjectKey::new(b, &name))
            .await
            .unwrap();
        let operations: Vec<_> = map
            .managed_fields()
            .iter()
            .map(|entry| entry.operation.clone().unwrap())
            .collect();
        assert_eq!(operations, ["Apply"], "after {k} requests");
        k += 1;
        assert!(k < REQUESTS_MAX, "a reconcile does not end");
    }
    assert!(k > 20, "a reconcile has only {k} requests");
}

/// Largest number of writes that were under way at the same time.
fn at_once(exchanges: &[Exchange]) -> usize {
    let writes: Vec<_> = exchanges.iter().filter(|one| one.is_write()).collect();
    let open_at = |time| {
        let is_open = |one: &&&Exchange| one.arrived <= time && one.last_byte.is_none_or(|end| end > time);
        writes.iter().filter(is_open).count()
    };
    writes.iter().map(|one| open_at(one.arrived)).max().unwrap_or(0)
}

// R103, R138, guarantees 8 and 9
#[steersman_testing::test]
async fn guarantee_8_and_9_a_set_of_1000_objects_costs_no_request_once_it_is_applied(fixture: Fixture) {
    let size = match fixture.server_kind() {
        ServerKind::Embedded => 1000,
        _ => 300,
    };
    let (proxy, other) = (fixture.proxy().await, namespace(&fixture, "b").await);
    let stand = proxied(&fixture, &proxy).await;
    let (client, one) = (stand.cluster().live(), key(&fixture, "one"));
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let reconciler = generating(FINALIZER, move |_: &Widget, set: &mut ApplySet<(ConfigMap,)>| {
        for index in 0..size {
            set.add(map(&other, &format!("m{index}"), "1"));
        }
        Ok(())
    });
    call(&stand, one.clone(), &reconciler).await;
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let id = &found.labels()["applyset.kubernetes.io/id"];
    let members = client
        .list::<ConfigMap>(&Query::new().label(PART_OF, id))
        .await
        .unwrap();
    assert_eq!(members.len(), size);
    assert!(members.iter().all(|member| member.key().name().starts_with('m')));
    let exchanges = proxy.exchanges();
    let most = at_once(&exchanges);
    assert!((2..=8).contains(&most), "{most} writes at once");
    let requests = |exchanges: &[Exchange]| exchanges.iter().filter(|one| !one.is_watch()).count();
    let before = requests(&exchanges);
    for _ in 0..3 {
        assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    }
    assert_eq!(requests(&proxy.exchanges()), before, "requests in steady state");
}
