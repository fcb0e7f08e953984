// SPDX-License-Identifier: Apache-2.0
//! Defaults and older versions, in memory.

use kube::{CustomResource, CustomResourceExt, ResourceExt, api::Patch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman_core::Action;
use steersman_kit::{Defaults, KindReconciler, NoCleanup, Work, managed};
use steersman_runtime::{BoxError, Controller};
use steersman_testing::{Fixture, eventually};

use super::support::*;

impl Defaults for Widget {
    fn set_defaults(&mut self) {
        self.spec.color.get_or_insert_with(|| "blue".to_owned());
    }
}

/// Writes the color that it sees into the status.
fn noting() -> Scripted {
    scripted(|widget, work| {
        Box::pin(async move {
            work.status_mut().note = format!(
                "{} {}",
                widget.spec.color.clone().unwrap_or_default(),
                widget.spec.size
            );
            Ok(Action::await_change())
        })
    })
}

// R105
#[steersman_testing::test]
async fn defaults_are_seen_by_user_code_and_never_written(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    call(&stand, one.clone(), &managed(noting())).await;
    let note = async || {
        client
            .get_required::<Widget>(&one)
            .await
            .unwrap()
            .status
            .clone()
            .unwrap()
            .note
    };
    assert_eq!(note().await, " 1");
    let reconciler = managed(noting()).defaulted();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(note().await, "blue 1");
    let stored = client.get_required::<Widget>(&one).await.unwrap();
    assert_eq!(
        (stored.spec.color.clone(), stored.metadata.generation),
        (None, Some(1))
    );
    client
        .patch::<Widget>(&one, &Patch::Merge(json!({"spec": {"color": "red"}})))
        .await
        .unwrap();
    call(&stand, one.clone(), &reconciler).await;
    assert_eq!(note().await, "red 1");
}

/// The kind in its newest version, which the server does not have yet.
mod v2 {
    use super::*;

    #[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
    #[kube(
        group = "kit.steersman.example",
        version = "v2",
        kind = "Widget",
        namespaced,
        status = "WidgetStatus"
    )]
    #[serde(default)]
    pub(super) struct WidgetSpec {
        pub(super) replicas: i32,
        pub(super) shade: Option<String>,
        pub(super) label: Option<String>,
    }
}

use v2::{Widget as NewWidget, WidgetSpec as NewWidgetSpec};

impl From<Widget> for NewWidget {
    fn from(old: Widget) -> Self {
        let spec = NewWidgetSpec {
            replicas: old.spec.size,
            shade: old.spec.color,
            label: None,
        };
        Self {
            metadata: old.metadata,
            status: old.status,
            ..Self::new("", spec)
        }
    }
}

impl Defaults for NewWidget {
    fn set_defaults(&mut self) {
        self.spec.label.get_or_insert_with(|| "none".to_owned());
    }
}

struct NewWidgets;

impl KindReconciler for NewWidgets {
    type Kind = NewWidget;
    type Status = WidgetStatus;
    type Children = ();
    type Finalizer = NoCleanup;

    async fn reconcile(&self, widget: &NewWidget, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let NewWidgetSpec {
            replicas,
            shade,
            label,
        } = &widget.spec;
        let note = format!("{} {replicas} {shade:?} {label:?}", widget.name_any());
        work.status_mut().note = note;
        Ok(Action::await_change())
    }
}

// R107
#[steersman_testing::test]
async fn an_object_of_an_older_version_is_converted_and_defaulted_twice(fixture: Fixture) {
    let (stand, client, one) = with_widget(&fixture, "1").await;
    let reconciler = managed(NewWidgets)
        .defaulted()
        .upgrades::<Widget>()
        .stored_defaults();
    call(&stand, one.clone(), &reconciler).await;
    let found = client.get_required::<Widget>(&one).await.unwrap();
    let note = &found.status.as_ref().unwrap().note;
    assert_eq!(note, "one 1 Some(\"blue\") Some(\"none\")");
    assert_eq!((found.metadata.generation, &found.spec.color), (Some(1), &None));
    assert_eq!(call(&stand, one, &reconciler).await, [""; 0]);
}

/// A kind with two versions that differ in their fields, without a conversion webhook.
mod gizmo {
    use super::*;

    pub(super) mod v1alpha1 {
        use super::*;

        #[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
        #[kube(
            group = "versions.steersman.example",
            version = "v1alpha1",
            kind = "Gizmo",
            namespaced,
            status = "WidgetStatus"
        )]
        #[serde(default)]
        pub(crate) struct GizmoSpec {
            pub(crate) size: i32,
        }
    }

    pub(super) mod v1beta1 {
        use super::*;

        #[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
        #[kube(
            group = "versions.steersman.example",
            version = "v1beta1",
            kind = "Gizmo",
            namespaced,
            status = "WidgetStatus"
        )]
        #[serde(default)]
        pub(crate) struct GizmoSpec {
            pub(crate) replicas: i32,
        }
    }
}

use gizmo::{v1alpha1, v1beta1};

impl From<v1alpha1::Gizmo> for v1beta1::Gizmo {
    fn from(old: v1alpha1::Gizmo) -> Self {
        let spec = v1beta1::GizmoSpec {
            replicas: old.spec.size,
        };
        Self {
            metadata: old.metadata,
            status: old.status,
            ..Self::new("", spec)
        }
    }
}

struct Gizmos;

impl KindReconciler for Gizmos {
    type Kind = v1beta1::Gizmo;
    type Status = WidgetStatus;
    type Children = ();
    type Finalizer = NoCleanup;

    async fn reconcile(&self, gizmo: &v1beta1::Gizmo, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.status_mut().ready_replicas = gizmo.spec.replicas;
        Ok(Action::await_change())
    }
}

// R107: the strategy `None`. Objects are watched, and their status is written, at the old version, which is the stored one.
#[steersman_testing::test]
async fn without_a_webhook_objects_are_watched_and_their_status_is_written_at_the_old_version(
    fixture: Fixture,
) {
    let versions = vec![v1alpha1::Gizmo::crd(), v1beta1::Gizmo::crd()];
    let merged = kube::core::crd::merge_crds(versions, "v1alpha1").unwrap();
    fixture.install(&merged).await;
    let proxy = fixture.proxy().await;
    let manager = manager(cluster_through(&fixture, &proxy).await).await;
    let reconciler = managed(Gizmos).upgrades::<v1alpha1::Gizmo>();
    Controller::of::<v1alpha1::Gizmo>("gizmos")
        .add_to(&manager, reconciler)
        .unwrap();
    let running = run(manager);
    let beside = cluster_builder(&fixture, "beside").build().await.unwrap();
    let client = beside.live();
    let one = key(&fixture, "one");
    let mut gizmo = v1alpha1::Gizmo::new("one", v1alpha1::GizmoSpec { size: 3 });
    gizmo.metadata.namespace = Some(fixture.namespace().to_owned());
    client.create(&gizmo).await.unwrap();
    let found = eventually("the status", async || {
        let found = client.get_required::<v1alpha1::Gizmo>(&one).await.unwrap();
        found.status.is_some().then_some(found)
    })
    .await;
    assert_eq!(found.status.as_ref().unwrap().ready_replicas, 3);
    assert_eq!((found.spec.size, found.metadata.generation), (3, Some(1)));
    // The new version does not show the old field, so a controller that watched it would lose the size.
    let new = client.get_required::<v1beta1::Gizmo>(&one).await.unwrap();
    assert_eq!(
        (new.spec.replicas, new.status.as_ref().unwrap().ready_replicas),
        (0, 3)
    );
    let requests = proxy.exchanges();
    let used = requests.iter().filter(|it| it.path.contains("/gizmos"));
    let mut used: Vec<&str> = used
        .map(|it| it.path.split('/').nth(3).unwrap_or_default())
        .collect();
    used.dedup();
    assert_eq!(used, ["v1alpha1"]);
    running.end().await;
}
