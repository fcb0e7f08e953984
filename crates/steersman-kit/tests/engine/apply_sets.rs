// SPDX-License-Identifier: Apache-2.0
//! Apply sets: which objects are written, and which are deleted.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount},
    rbac::v1::Role,
};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::{Value, json};
use steersman_cache::{ObjectDetail, Query, Resource};
use steersman_cluster::{Client, DeleteOptions, ObjectExt};
use steersman_core::{Action, ObjectKey, error_chain};
use steersman_kit::{
    ApplySet, ApplySetParent, ApplySets, ChildKind, ConditionSet, DeletesApplySet, Generating, InventoryIn,
    KindReconciler, Work, generating, managed,
};
use steersman_runtime::{BoxError, Context, Controller, Request, reconcile_fn, testing::Stand};
use steersman_testing::{
    Fixture, eventually,
    proxy::{Fault, Matching},
};

use super::support::*;

pub(super) const FINALIZER: &str = "kit.steersman.example/members";
pub(super) const PART_OF: &str = "applyset.kubernetes.io/part-of";
const MEMBER: &str = "applyset.steersman.dev/member";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

type Maps = (ConfigMap, Secret);
type Function<L> = Box<dyn Fn(&Widget, &mut ApplySet<L>) -> Result<(), BoxError> + Send + Sync>;

/// A reconciler that generates these objects.
fn generates<L: steersman_kit::KindList>(
    function: impl Fn(&Widget, &mut ApplySet<L>) + Send + Sync + 'static,
) -> Generating<Widget, L, Function<L>> {
    let function: Function<L> = Box::new(move |widget, set| {
        function(widget, set);
        Ok(())
    });
    generating(FINALIZER, function)
}

pub(super) fn map(namespace: &str, name: &str, value: &str) -> ConfigMap {
    object(json!({"metadata": {"name": name, "namespace": namespace}, "data": {"value": value}}))
}

pub(super) fn secret(namespace: &str, name: &str) -> Secret {
    object(json!({"metadata": {"name": name, "namespace": namespace}, "stringData": {"a": "b"}}))
}

/// Another namespace of the test.
pub(super) async fn namespace(fixture: &Fixture, suffix: &str) -> String {
    let name = format!("{}-{suffix}", fixture.namespace());
    let client = cluster_builder(fixture, "namespaces")
        .build()
        .await
        .unwrap()
        .live();
    let namespace: Namespace = object(json!({"metadata": {"name": name}}));
    client.create(&namespace).await.unwrap();
    name
}

/// Creates a widget and returns its key.
async fn parent(stand: &Stand, fixture: &Fixture) -> ObjectKey {
    let client = stand.cluster().live();
    client.create(&widget(fixture, "one", "1")).await.unwrap();
    key(fixture, "one")
}

/// Names of the members of a kind, with their namespaces.
async fn members<K: ChildKind>(client: &Client, id: &str) -> BTreeSet<String> {
    let found = client
        .live()
        .list::<K>(&Query::new().label(PART_OF, id))
        .await
        .unwrap();
    found.iter().map(|object| object.key().to_string()).collect()
}

async fn set_id(client: &Client, parent: &ObjectKey) -> String {
    let parent = client.live().get_required::<Widget>(parent).await.unwrap();
    parent.labels()["applyset.kubernetes.io/id"].clone()
}

fn set<const N: usize>(names: [String; N]) -> BTreeSet<String> {
    names.into()
}

// R138, guarantees 1 and 10
#[steersman_testing::test]
async fn guarantee_1_and_10_members_of_other_namespaces_are_applied_by_one_field_manager(fixture: Fixture) {
    let (stand, other) = (stand(&fixture).await, namespace(&fixture, "b").await);
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        stand.cluster().live(),
        fixture.namespace(),
    );
    let there = other.clone();
    let reconciler = generates::<Maps>(move |widget, set| {
        let mut here = map("", "here", &widget.spec.value);
        here.metadata.namespace = None;
        set.add(here).add(secret(&there, "there"));
    });
    let writes = call(&stand, one.clone(), &reconciler).await;
    let expected = [
        format!("patch widgets.kit.steersman.example {ns}/one"),
        format!("patch widgets.kit.steersman.example {ns}/one"),
    ];
    assert_eq!(
        writes[..2],
        expected,
        "the finalizer and the inventory come first"
    );
    let widget = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        (&*widget.annotations()[KINDS], &*widget.annotations()[NAMESPACES]),
        ("ConfigMap,Secret", &*other)
    );
    assert!(widget.annotations()["applyset.kubernetes.io/tooling"].starts_with("widgets-applyset/v"));
    let id = set_id(&client, &one).await;
    let here = client
        .get_required::<ConfigMap>(&ObjectKey::new(ns, "here"))
        .await
        .unwrap();
    assert_eq!(here.owner_references()[0].uid, widget.uid().unwrap());
    let there = client
        .get_required::<Secret>(&ObjectKey::new(&other, "there"))
        .await
        .unwrap();
    assert!(
        there.owner_references().is_empty(),
        "owner references do not cross namespaces"
    );
    assert_eq!((&there.labels()[PART_OF], &here.labels()[PART_OF]), (&id, &id));
    for fields in [here.managed_fields(), there.managed_fields()] {
        let managers: Vec<_> = fields
            .iter()
            .map(|entry| (entry.manager.as_deref(), entry.operation.as_deref()))
            .collect();
        assert_eq!(managers, [(Some("widgets-applyset"), Some("Apply"))]);
    }
    assert_eq!(call(&stand, one, &reconciler).await, [""; 0], "nothing changed");
}

// R138, at its sizes: 5 children, 2 kinds, 2 namespaces
#[steersman_testing::test]
async fn a_member_that_left_while_the_operator_was_down_is_pruned_and_no_other(fixture: Fixture) {
    let before = stand(&fixture).await;
    let (ns, other) = (fixture.namespace().to_owned(), namespace(&fixture, "b").await);
    let (one, client) = (parent(&before, &fixture).await, before.cluster().live());
    let generated = |has_c: bool, is_valid: bool| {
        let (ns, other) = (ns.clone(), other.clone());
        generates::<Maps>(move |_, set| {
            set.add(map(&ns, "a", "1")).add(map(&ns, "b", "1"));
            if has_c {
                set.add(map(&other, "c", "1"));
            }
            set.add(secret(&ns, "d")).add(secret(&other, "e"));
            if !is_valid {
                set.add::<ConfigMap, _>(object(json!({"metadata": {"name": "f"}, "data": {"no key": ""}})));
            }
        })
    };
    // The name of one of them is taken.
    let foreign = client.create(&secret(&other, "e")).await.unwrap();
    call(&before, one.clone(), &generated(true, true)).await;
    let id = set_id(&client, &one).await;
    let all = set([format!("{ns}/a"), format!("{ns}/b"), format!("{other}/c")]);
    assert_eq!(members::<ConfigMap>(&client, &id).await, all);
    drop(before);

    // After a restart, with a function that leaves one out, and whose apply fails midway: nothing is pruned.
    let after = stand(&fixture).await;
    let failed = after.call(one.clone(), &generated(false, false)).await;
    let error = error_chain(&*failed.result.unwrap_err());
    assert!(
        error.contains("nothing was pruned; one of them is ConfigMap"),
        "{error}"
    );
    assert_eq!(members::<ConfigMap>(&client, &id).await, all);
    let writes = call(&after, one.clone(), &generated(false, true)).await;
    let deleted: Vec<_> = writes
        .iter()
        .filter(|write| write.starts_with("delete"))
        .collect();
    assert_eq!(deleted, [&format!("delete configmaps {other}/c")]);
    assert_eq!(members::<Secret>(&client, &id).await, set([format!("{ns}/d")]));
    let found = client
        .get_required::<Secret>(&ObjectKey::new(&other, "e"))
        .await
        .unwrap();
    assert_eq!(
        found.resource_version(),
        foreign.resource_version(),
        "a foreign object is untouched"
    );

    // The parent is deleted: members in other namespaces too.
    client
        .delete::<Secret>(&found.key(), DeleteOptions::default())
        .await
        .unwrap();
    call(&after, one.clone(), &generated(false, true)).await;
    assert_eq!(members::<Secret>(&client, &id).await.len(), 2);
    after
        .cluster()
        .live()
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&after, one.clone(), &generated(false, true)).await;
    assert!(members::<Secret>(&client, &id).await.is_empty());
    assert!(members::<ConfigMap>(&client, &id).await.is_empty());
    assert!(
        client.get::<Widget>(&one).await.unwrap().is_none(),
        "its finalizer is removed"
    );
}

// R138, guarantees 2 and 7
#[steersman_testing::test]
async fn guarantee_2_and_7_only_objects_of_the_set_are_pruned(fixture: Fixture) {
    let (stand, other) = (stand(&fixture).await, namespace(&fixture, "b").await);
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        stand.cluster().live(),
        fixture.namespace(),
    );
    let (here, there) = (ns.to_owned(), other.clone());
    let generated = |is_full: bool| {
        let (here, there) = (here.clone(), there.clone());
        generates::<Maps>(move |_, set| {
            if is_full {
                set.add(map(&here, "m", "1")).add(map(&there, "m", "1"));
            }
        })
    };
    call(&stand, one.clone(), &generated(true)).await;
    let id = set_id(&client, &one).await;
    let member = client
        .get_required::<ConfigMap>(&ObjectKey::new(&other, "m"))
        .await
        .unwrap();
    let mark = member.annotations()[MEMBER].clone();
    let uid = client.get_required::<Widget>(&one).await.unwrap().uid().unwrap();
    let copy = async |manager: &str, name: &str, mark: Option<String>, owner: Option<Value>| {
        let mut copy = map(&other, name, "1");
        copy.labels_mut().insert(PART_OF.to_owned(), id.clone());
        if let Some(mark) = mark {
            copy.annotations_mut().insert(MEMBER.to_owned(), mark);
        }
        copy.metadata.owner_references = owner.map(|owner| vec![object(owner)]);
        client.field_manager(manager).create(&copy).await.unwrap();
    };
    // Each of them lacks one thing.
    let own_mark = |name: &str| Some(format!("{uid}/ConfigMap/{other}/{name}"));
    let former = own_mark("former-parent").map(|mark| mark.replace(&uid, "7"));
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "7", "controller": true});
    let (ours, copier) = ("widgets-applyset", "copier");
    copy(ours, "labels", None, None).await;
    copy(ours, "labels-and-annotations", Some(mark), None).await;
    copy(ours, "former-parent", former, None).await;
    copy(copier, "other-manager", own_mark("other-manager"), None).await;
    copy(
        ours,
        "other-controller",
        own_mark("other-controller"),
        Some(owner),
    )
    .await;
    call(&stand, one.clone(), &generated(false)).await;
    let copies = [
        "former-parent",
        "labels",
        "labels-and-annotations",
        "other-controller",
        "other-manager",
    ];
    let expected: BTreeSet<String> = copies.iter().map(|name| format!("{other}/{name}")).collect();
    assert_eq!(members::<ConfigMap>(&client, &id).await, expected);
    // Copies do not keep their kind in the inventory.
    let widget = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        (&*widget.annotations()[KINDS], &*widget.annotations()[NAMESPACES]),
        ("", "")
    );
    // Nor are they deleted with the parent.
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one, &generated(false)).await;
    assert_eq!(members::<ConfigMap>(&client, &id).await, expected);
}

// R138, guarantee 2
#[steersman_testing::test]
async fn guarantee_2_a_deletion_names_the_version_that_was_checked(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let stand = Stand::new(proxy.client(fixture.admin()).unwrap())
        .await
        .unwrap()
        .controller("widgets");
    let (one, ns) = (parent(&stand, &fixture).await, fixture.namespace().to_owned());
    let client = cluster_builder(&fixture, "beside").build().await.unwrap().live();
    let generated = |is_full: bool| {
        let ns = ns.clone();
        generates::<Maps>(move |_, set| {
            if is_full {
                set.add(map(&ns, "m", "1"));
            }
        })
    };
    call(&stand, one.clone(), &generated(true)).await;
    let member = ObjectKey::new(&ns, "m");
    let maps = client.of_as::<Value>(&Resource::of::<ConfigMap>(), ObjectDetail::Full);
    let checked = maps.get_required(&member).await.unwrap().to_string();
    // Between the read of the member and its deletion, another controller takes it over.
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "7", "controller": true});
    let owner = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    client.patch::<ConfigMap>(&member, &owner).await.unwrap();
    let _read = proxy.inject(
        Matching::method("GET").path("/configmaps/m").first(1),
        Fault::respond(200, "application/json", checked),
    );
    call(&stand, one, &generated(false)).await;
    let exchanges = proxy.exchanges();
    let deletions: Vec<_> = exchanges.iter().filter(|one| one.method == "DELETE").collect();
    assert_eq!(
        deletions.iter().map(|one| one.status).collect::<Vec<_>>(),
        [Some(409)]
    );
    assert!(client.get::<ConfigMap>(&member).await.unwrap().is_some());
}

// R109, R138, guarantee 4
#[steersman_testing::test]
async fn guarantee_4_a_foreign_object_delays_no_other_member(fixture: Fixture) {
    let (stand, other) = (stand(&fixture).await, namespace(&fixture, "b").await);
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        stand.cluster().live(),
        fixture.namespace(),
    );
    let foreign = client.create(&map(&other, "m", "foreign")).await.unwrap();
    let (here, there) = (ns.to_owned(), other.clone());
    let generated = |has_old: bool| {
        let (here, there) = (here.clone(), there.clone());
        generates::<Maps>(move |_, set| {
            if has_old {
                set.add(map(&here, "old", "1"));
            }
            set.add(map(&there, "m", "1")).add(map(&here, "next", "1"));
        })
    };
    let reconciler = generated(true);
    call(&stand, one.clone(), &reconciler).await;
    let id = set_id(&client, &one).await;
    let both = set([format!("{ns}/next"), format!("{ns}/old")]);
    assert_eq!(members::<ConfigMap>(&client, &id).await, both);
    call(&stand, one.clone(), &generated(false)).await;
    assert_eq!(
        members::<ConfigMap>(&client, &id).await,
        set([format!("{ns}/next")])
    );
    let now = client.get_required::<ConfigMap>(&foreign.key()).await.unwrap();
    assert_eq!(now.resource_version(), foreign.resource_version());
}

// R138, guarantee 5
#[steersman_testing::test]
async fn guarantee_5_namespaces_are_applied_first_and_deletions_come_last(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let (one, ns) = (parent(&stand, &fixture).await, fixture.namespace().to_owned());
    let made = format!("{ns}-made");
    let generated = |name: &'static str| {
        let (ns, made) = (ns.clone(), made.clone());
        generates::<(ConfigMap, Namespace)>(move |_, set| {
            set.add(map(&made, name, "1")).add(map(&ns, name, "1"));
            set.add(object::<Namespace>(json!({"metadata": {"name": made}})));
        })
    };
    let writes = call(&stand, one.clone(), &generated("a")).await;
    assert_eq!(writes[2], format!("create namespaces {made}"), "{writes:?}");
    let writes = call(&stand, one.clone(), &generated("b")).await;
    let first = writes
        .iter()
        .position(|write| write.starts_with("delete"))
        .unwrap();
    assert!(
        writes[first..].iter().all(|write| write.starts_with("delete")),
        "{writes:?}"
    );
    assert_eq!(writes.len() - first, 2, "{writes:?}");
    // With the parent, the namespace is deleted after its content.
    stand
        .cluster()
        .live()
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    let writes = call(&stand, one, &generated("b")).await;
    let namespaces = writes
        .iter()
        .position(|write| write == &format!("delete namespaces {made}"));
    let last = writes
        .iter()
        .rposition(|write| write.starts_with("delete configmaps"));
    assert!(namespaces > last && last.is_some(), "{writes:?}");
}

// R138, guarantee 6
#[steersman_testing::test]
async fn guarantee_6_a_forbidden_or_absent_kind_delays_only_itself(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let proxy = fixture.proxy().await;
    let stand = Stand::new(proxy.client(fixture.admin()).unwrap())
        .await
        .unwrap()
        .controller("widgets");
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        stand.cluster().live(),
        fixture.namespace().to_owned(),
    );
    let here = ns.clone();
    let all = generates::<(ConfigMap, Secret, ServiceAccount)>(move |_, set| {
        set.add(map(&here, "m", "1")).add(secret(&here, "s"));
        set.add::<ServiceAccount, _>(object(json!({"metadata": {"name": "a"}})));
    });
    call(&stand, one.clone(), &all).await;
    let id = set_id(&client, &one).await;
    // The set once had members of a kind whose CRD was removed.
    let widget = client.get_required::<Widget>(&one).await.unwrap();
    let kinds = format!("{},Gone.example.com", widget.annotations()[KINDS]);
    let kinds = Patch::Merge(json!({"metadata": {"annotations": {KINDS: kinds}}}));
    client.patch::<Widget>(&one, &kinds).await.unwrap();
    // The code does not mention Secrets any more, and the operator is not allowed to list them.
    let forbidden = proxy.inject(Matching::method("GET").path("/secrets"), Fault::answer(403));
    let fewer = generates::<(ConfigMap, ServiceAccount)>(|_, _| {});
    let outcome = stand.call(one.clone(), &fewer).await;
    assert_ne!(
        outcome.result.unwrap(),
        Action::await_change(),
        "it is tried again"
    );
    assert!(members::<ConfigMap>(&client, &id).await.is_empty());
    assert!(members::<ServiceAccount>(&client, &id).await.is_empty());
    let widget = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(widget.annotations()[KINDS], "Gone.example.com,Secret");
    drop(forbidden);
    call(&stand, one.clone(), &fewer).await;
    assert!(members::<Secret>(&client, &id).await.is_empty());
    let widget = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(widget.annotations()[KINDS], "Gone.example.com");
    // A kind that does not exist does not delay the deletion of the parent.
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &fewer).await;
    assert!(client.get::<Widget>(&one).await.unwrap().is_none());
}

// R138, guarantee 1
#[steersman_testing::test]
async fn guarantee_1_a_stale_read_of_the_parent_removes_nothing_from_the_inventory(fixture: Fixture) {
    let (stand, beside) = (
        stand(&fixture).await,
        cluster_builder(&fixture, "beside").build().await.unwrap(),
    );
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        beside.live(),
        fixture.namespace().to_owned(),
    );
    let here = ns.clone();
    let maps = generates::<Maps>(move |_, set| {
        set.add(map(&here, "m", "1"));
    });
    let secrets = generates::<(Secret,)>(move |_, set| {
        set.add(secret(&ns, "s"));
    });
    // Another process has just written the inventory; the cache of this one does not know yet.
    let proxy = fixture.proxy().await;
    let stale = Stand::new(proxy.client(fixture.admin()).unwrap())
        .await
        .unwrap()
        .controller("widgets");
    let _known = stale
        .cluster()
        .client()
        .get_required::<Widget>(&one)
        .await
        .unwrap();
    let widgets = || Matching::watches().path("/widgets");
    let _cut = proxy.inject(widgets(), Fault::stall());
    proxy.cut(&widgets(), steersman_testing::proxy::Cut::Clean);
    call(&stand, one.clone(), &maps).await;
    call(&stale, one.clone(), &secrets).await;
    let id = set_id(&client, &one).await;
    assert!(
        members::<ConfigMap>(&client, &id).await.is_empty(),
        "it is found in the inventory and pruned"
    );
    assert_eq!(members::<Secret>(&client, &id).await.len(), 1);
}

// R138
#[steersman_testing::test]
async fn a_plan_shows_the_changes_and_writes_nothing(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let (one, ns) = (parent(&stand, &fixture).await, fixture.namespace().to_owned());
    let (sets, plans) = (
        ApplySets::new(FINALIZER),
        Arc::new(std::sync::Mutex::new(String::new())),
    );
    let set_of = |names: &[&str], value: &str| {
        let mut set = ApplySet::<(ConfigMap, Secret)>::new();
        for name in names {
            set.add(map(&ns, name, value));
        }
        set.add::<Secret, _>(object(
            json!({"metadata": {"name": "s", "namespace": ns}, "stringData": {"a": value}}),
        ));
        Arc::new(set)
    };
    let reconciler = |set: Arc<ApplySet<(ConfigMap, Secret)>>, is_plan: bool| {
        let (sets, plans) = (sets.clone(), Arc::clone(&plans));
        reconcile_fn(move |request: Request, cx: Context| {
            let (sets, set, plans) = (sets.clone(), Arc::clone(&set), Arc::clone(&plans));
            async move {
                let widget = cx.client().get_required::<Widget>(request.key()).await?;
                if is_plan {
                    let plan = sets.plan(&*widget, &cx, &set).await?;
                    *plans.lock().unwrap() = plan.to_string();
                    return Ok::<_, BoxError>(Action::await_change());
                }
                Ok(sets.reconcile(&*widget, &cx, &set).await?.action())
            }
        })
    };
    let plan = async |names: &[&str], value: &str| {
        let writes = call(&stand, one.clone(), &reconciler(set_of(names, value), true)).await;
        let real: Vec<_> = writes.iter().filter(|write| !write.contains("dry")).collect();
        (
            real.len() - real.iter().filter(|write| write.starts_with("apply")).count(),
            plans.lock().unwrap().clone(),
        )
    };
    let created = format!("+ ConfigMap {ns}/a\n+ ConfigMap {ns}/b\n+ Secret {ns}/s\n");
    assert_eq!(plan(&["a", "b"], "1").await, (0, created));
    call(&stand, one.clone(), &reconciler(set_of(&["a", "b"], "1"), false)).await;
    assert_eq!(plan(&["a", "b"], "1").await, (0, String::new()));
    let changed = format!(
        "~ ConfigMap {ns}/a\n    ~ /data/value: \"1\" → \"2\"\n+ ConfigMap {ns}/c\n~ Secret {ns}/s\n    ~ /data/a: \"(hidden)\" → \
         \"(hidden)\"\n- ConfigMap {ns}/b\n"
    );
    assert_eq!(plan(&["a", "c"], "2").await, (0, changed));
    let client = stand.cluster().live();
    let a = client
        .get_required::<ConfigMap>(&ObjectKey::new(&ns, "a"))
        .await
        .unwrap();
    assert_eq!(a.data.as_ref().unwrap()["value"], "1", "a plan writes nothing");
    assert!(
        client
            .get::<ConfigMap>(&ObjectKey::new(&ns, "b"))
            .await
            .unwrap()
            .is_some()
    );
}

// R138
#[steersman_testing::test]
async fn the_inventory_can_be_in_a_config_map(fixture: Fixture) {
    let (stand, other) = (stand(&fixture).await, namespace(&fixture, "b").await);
    let (one, client, ns) = (
        parent(&stand, &fixture).await,
        stand.cluster().live(),
        fixture.namespace(),
    );
    // Another tool uses the parent for a set.
    let taken = json!({"metadata": {"annotations": {"applyset.kubernetes.io/tooling": "kubectl/v1.36"}}});
    client.patch::<Widget>(&one, &Patch::Merge(taken)).await.unwrap();
    let generated = |place: InventoryIn, is_full: bool| {
        let there = other.clone();
        generates::<Maps>(move |_, set| {
            if is_full {
                set.add(secret(&there, "s"));
            }
        })
        .inventory_in(place)
    };
    let failed = stand
        .call(one.clone(), &generated(InventoryIn::parent(), true))
        .await;
    let error = error_chain(&*failed.result.unwrap_err());
    assert!(error.contains("kubectl/v1.36 manages a set there"), "{error}");
    let elsewhere = InventoryIn::config_map("members");
    call(&stand, one.clone(), &generated(elsewhere, true)).await;
    let inventory = ObjectKey::new(ns, "one-members");
    let map = client.get_required::<ConfigMap>(&inventory).await.unwrap();
    assert_eq!(
        (&*map.annotations()[KINDS], &*map.annotations()[NAMESPACES]),
        ("Secret", &*other)
    );
    let id = &map.labels()["applyset.kubernetes.io/id"];
    assert_eq!(members::<Secret>(&client, id).await, set([format!("{other}/s")]));
    let fresh = generated(elsewhere, false);
    call(&stand, one.clone(), &fresh).await;
    assert!(members::<Secret>(&client, id).await.is_empty());
    assert_eq!(call(&stand, one, &fresh).await, [""; 0]);
}

/// A reconciler with an apply set in two namespaces.
struct Spread {
    other: String,
}

impl KindReconciler for Spread {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap, Service, Role);
    type Finalizer = DeletesApplySet;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let mut set = ApplySet::new();
        set.add(map(&self.other, "m", &widget.spec.value));
        let is_ready = widget.spec.size == 1;
        set.add_ready_if(map_of(widget), move |_| is_ready);
        work.set_true(Cond::Available);
        work.apply_set(Cond::Configured, &set).await;
        Ok(Action::await_change())
    }
}

impl ApplySetParent for Spread {
    const FINALIZER: &str = FINALIZER;
}

// R106, R138
#[steersman_testing::test]
async fn a_condition_has_the_readiness_of_the_members(fixture: Fixture) {
    let other = namespace(&fixture, "b").await;
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(Spread { other: other.clone() });
    let says = async || {
        let found = client.get_required::<Widget>(&one).await.unwrap();
        condition(&found, Cond::Configured.name())
    };
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(says().await, ("True".into(), "Configured".into()));
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [""; 0]);
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"size": 2}})))
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(says().await, ("Unknown".into(), "NotReady".into()));
    // A foreign member.
    let member = ObjectKey::new(&other, "m");
    client
        .delete::<ConfigMap>(&member, DeleteOptions::default())
        .await
        .unwrap();
    client.create(&map(&other, "m", "foreign")).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(says().await, ("False".into(), "NotOwned".into()));
    client
        .delete::<ConfigMap>(&member, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert!(client.get::<ConfigMap>(&member).await.unwrap().is_some());
    // The finalizer.
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert!(client.get::<ConfigMap>(&member).await.unwrap().is_none());
    assert!(client.get::<Widget>(&one).await.unwrap().is_none());
}

// R101, R138
#[steersman_testing::test]
async fn a_running_controller_restores_and_prunes_members_of_other_namespaces(fixture: Fixture) {
    fixture.install(&Widget::crd()).await;
    let other = namespace(&fixture, "b").await;
    let config = fixture.endpoint().config(fixture.admin()).unwrap();
    let cluster = steersman_cluster::Cluster::builder("default")
        .config(config)
        .build()
        .await
        .unwrap();
    let (client, manager) = (cluster.live(), manager(cluster).await);
    Controller::of::<Widget>("widgets")
        .namespace(fixture.namespace())
        .add_to(&manager, managed(Spread { other: other.clone() }))
        .unwrap();
    let running = run(manager);
    let client = client.field_manager("tests");
    client.create(&widget(&fixture, "one", "1")).await.unwrap();
    let (one, member) = (key(&fixture, "one"), ObjectKey::new(&other, "m"));
    let value = async |expected: &str| {
        eventually("the member has its value", async || {
            let map = client.get::<ConfigMap>(&member).await.unwrap()?;
            (map.data.as_ref()?.get("value")? == expected).then_some(map)
        })
        .await
    };
    let found = value("1").await;
    // It is restored after a change and after a deletion, although it has no owner reference.
    let change = Patch::Merge(json!({"data": {"value": "changed"}}));
    client.patch::<ConfigMap>(&member, &change).await.unwrap();
    value("1").await;
    client
        .delete::<ConfigMap>(&member, DeleteOptions::default())
        .await
        .unwrap();
    assert_ne!(value("1").await.uid(), found.uid());
    // A member of this kind that an earlier process left behind is pruned when it appears.
    let id = set_id(&client, &one).await;
    let uid = client.get_required::<Widget>(&one).await.unwrap().uid().unwrap();
    let mut left = map(&other, "left", "1");
    left.labels_mut().insert(PART_OF.to_owned(), id);
    left.annotations_mut()
        .insert(MEMBER.to_owned(), format!("{uid}/ConfigMap/{other}/left"));
    client
        .field_manager("widgets-applyset")
        .create(&left)
        .await
        .unwrap();
    let left = ObjectKey::new(&other, "left");
    eventually("it is pruned", async || {
        client
            .get::<ConfigMap>(&left)
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    client
        .delete::<Widget>(&one, DeleteOptions::default())
        .await
        .unwrap();
    eventually("the set is deleted with its parent", async || {
        let is_gone = client.get::<Widget>(&one).await.unwrap().is_none();
        (is_gone && client.get::<ConfigMap>(&member).await.unwrap().is_none()).then_some(())
    })
    .await;
    running.end().await;
}
