// SPDX-License-Identifier: Apache-2.0
//! Apply sets and the rest of a parent: children, copies, switches.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::json;
use steersman_cluster::DeleteOptions;
use steersman_core::{Action, ObjectKey};
use steersman_kit::{
    ApplySet, ApplySetParent, ConditionSet, DeletesApplySet, KindReconciler, Switches, Work, managed,
};
use steersman_runtime::BoxError;
use steersman_testing::Fixture;

use super::{
    apply_sets::{FINALIZER, map},
    support::*,
};

/// A reconciler with the ConfigMap `NAME-own` as a child or as a member.
struct Moving {
    is_child: bool,
}

impl KindReconciler for Moving {
    type Kind = Widget;
    type Status = WidgetStatus;
    type Children = (ConfigMap,);
    type Finalizer = DeletesApplySet;

    async fn reconcile(&self, widget: &Widget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let namespace = widget.namespace().unwrap_or_default();
        let own = map(&namespace, &format!("{}-own", widget.name_any()), "1");
        let mut set = ApplySet::new();
        set.add(map(&namespace, &format!("{}-other", widget.name_any()), "1"));
        match self.is_child {
            true => _ = work.child(Cond::Available, own).await,
            false => _ = set.add(own),
        }
        work.set_true(Cond::Available);
        work.apply_set(Cond::Configured, &set).await;
        Ok(Action::await_change())
    }
}

impl ApplySetParent for Moving {
    const FINALIZER: &str = FINALIZER;
}

#[steersman_testing::test]
async fn a_member_that_becomes_a_child_is_not_deleted(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let own = key(&fixture, "one-own");
    call(&stand, one.clone(), &managed(Moving { is_child: false })).await;
    let member = client.get_required::<ConfigMap>(&own).await.unwrap();
    let after = managed(Moving { is_child: true });
    for _ in 0..2 {
        call(&stand, one.clone(), &after).await;
        let child = client.get_required::<ConfigMap>(&own).await.unwrap();
        assert_eq!(child.uid(), member.uid());
        assert_eq!(child.metadata.deletion_timestamp, None);
    }
}

#[steersman_testing::test]
async fn a_copy_of_a_parent_has_its_own_set(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(Moving { is_child: false });
    call(&stand, one.clone(), &reconciler).await;
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let mut copy = widget(&fixture, "two", "1");
    copy.metadata.labels.clone_from(&found.metadata.labels);
    copy.metadata.annotations.clone_from(&found.metadata.annotations);
    client.create(&copy).await.unwrap();
    let two = key(&fixture, "two");
    call(&stand, two.clone(), &reconciler).await;
    let id = "applyset.kubernetes.io/id";
    let copied = client.get_required::<Widget>(&two).await.unwrap();
    assert_ne!(copied.labels()[id], found.labels()[id]);
    let exists = async |name: &str| {
        let found = client.get::<ConfigMap>(&key(&fixture, name)).await.unwrap();
        found.is_some()
    };
    assert!(exists("two-own").await && exists("two-other").await);
    client
        .delete::<Widget>(&two, DeleteOptions::default())
        .await
        .unwrap();
    call(&stand, two.clone(), &reconciler).await;
    assert!(client.get::<Widget>(&two).await.unwrap().is_none());
    assert!(!exists("two-own").await && !exists("two-other").await);
    assert!(exists("one-own").await && exists("one-other").await);
}

#[steersman_testing::test]
async fn the_set_of_an_observed_object_is_not_written(fixture: Fixture) {
    let stand = stand(&fixture).await;
    let client = stand.cluster().live();
    let mut observed = widget(&fixture, "one", "1");
    observed
        .annotations_mut()
        .insert(Switches::OBSERVE_ONLY.to_owned(), "true".to_owned());
    client.create(&observed).await.unwrap();
    let (one, reconciler) = (key(&fixture, "one"), managed(Moving { is_child: false }));
    let status = format!(
        "apply widgets.kit.steersman.example {}/one status",
        fixture.namespace()
    );
    assert_eq!(call(&stand, one.clone(), &reconciler).await, [status]);
    let found = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        condition(&found, Cond::Configured.name()),
        ("Unknown".into(), "ObserveOnly".into())
    );
    assert!(
        client
            .get::<ConfigMap>(&ObjectKey::new(fixture.namespace(), "one-own"))
            .await
            .unwrap()
            .is_none()
    );
    // Without the annotation it is applied.
    let patch =
        kube::api::Patch::Merge(json!({"metadata": {"annotations": {(Switches::OBSERVE_ONLY): null}}}));
    client.patch::<Widget>(&one, &patch).await.unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert!(
        client
            .get::<ConfigMap>(&key(&fixture, "one-own"))
            .await
            .unwrap()
            .is_some()
    );
}
