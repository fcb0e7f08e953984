// SPDX-License-Identifier: Apache-2.0
//! Kinds that are replaced while the server rejects watches of CRDs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use super::{kinds, managed};
use std::{sync::Arc, time::Duration};

use steersman_cache::Resource;
use steersman_cluster::Cluster;
use steersman_core::{Action, PresenceStatus};
use steersman_runtime::{
    BoxError, Context, Controller, Reconciler, Request, RunnableStatus, dynamic, retry_after,
};
use steersman_testing::Fixture;
use tokio::sync::watch;

use kinds::TestKind;
use managed::{cluster, cluster_builder, manager_of, run, until};

const AN_HOUR: Duration = Duration::from_secs(3600);

/// A cluster as one sees it who may do anything with the kinds of the test, and nothing with definitions.
async fn limited(fixture: &Fixture) -> Cluster {
    let user = fixture.user("limited").await;
    let _ = user.grant(fixture.group(), &["*"], &["*"]).await.unwrap();
    cluster_builder(fixture, "default")
        .config(fixture.endpoint().config(user.identity()).unwrap())
        .build()
        .await
        .unwrap()
}

/// Result of a reconcile: the uid of the object if it exists, and the number of earlier failures.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    name: String,
    uid: Option<String>,
    attempt: u32,
}

/// Fails for an hour on each object that is there, and remembers what it found.
#[derive(Clone)]
struct Failing {
    resource: Resource,
    found: Arc<watch::Sender<Vec<Found>>>,
}

impl Failing {
    fn of(kind: &TestKind) -> Self {
        Self {
            resource: kind.resource.clone(),
            found: Arc::default(),
        }
    }

    async fn when(&self, condition: impl Fn(&[Found]) -> bool) -> Vec<Found> {
        let mut found = self.found.subscribe();
        found.wait_for(|found| condition(found)).await.unwrap().clone()
    }
}

impl Reconciler for Failing {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let object = match cx.client().of(&self.resource).get(request.key()).await {
            // There is no kind at the moment, and so no telling what became of the object.
            Err(error) if error.is_absent() => {
                return Ok(Action::requeue_after(Duration::from_millis(10)));
            }
            read => read?,
        };
        let uid = object.and_then(|object| object.metadata.uid.clone());
        let is_there = uid.is_some();
        self.found.send_modify(|found| {
            found.push(Found {
                name: request.name().to_owned(),
                uid,
                attempt: cx.attempt(),
            });
        });
        match is_there {
            true => Err(retry_after("as it always does", AN_HOUR).into()),
            false => Ok(Action::await_change()),
        }
    }
}

// R171
#[steersman_testing::test]
async fn a_poll_finds_that_a_kind_was_replaced_by_one_with_another_scope(fixture: Fixture) {
    let watched = limited(&fixture).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let soon = Duration::from_millis(50);
    widgets.install().await;
    let mut presence = watched.presence(&widgets.resource, AN_HOUR);
    let polled = watched.presence(&widgets.resource, soon);
    let former = presence.when(PresenceStatus::is_present).await;
    drop(polled);

    widgets.uninstall().await;
    widgets.install_as("Cluster").await;
    let _polled = watched.presence(&widgets.resource, soon);
    let is_another = |now: &PresenceStatus| now.is_present() && now.incarnation != former.incarnation;
    presence.when(is_another).await;
}

// R10, R24, R26, R171
#[steersman_testing::test]
async fn a_kind_that_is_replaced_between_two_polls_begins_anew_object_by_object(fixture: Fixture) {
    let watched = limited(&fixture).await;
    let client = cluster(&fixture).await.live();
    let manager = manager_of(watched.clone()).await;
    let widgets = TestKind::new(&fixture, "Widget");
    let failing = Failing::of(&widgets);
    widgets.install().await;
    for name in ["kept", "gone"] {
        widgets.apply(&client, name).await;
    }
    let controller = Controller::of_kind("widgets", dynamic(widgets.resource.clone()))
        .when_installed()
        .poll_every(AN_HOUR)
        .add_to(&manager, failing.clone())
        .unwrap();
    // It will be asked for once, and discovery may be late.
    let mut looked = watched.presence(&widgets.resource, Duration::from_millis(50));
    looked.when(PresenceStatus::is_present).await;
    let running = run(&manager);
    drop(looked);
    let former = failing.when(|found| found.len() == 2).await;
    until(|| controller.depth().delayed() == 2).await;
    let known = watched.presences();

    widgets.uninstall().await;
    widgets.install().await;
    widgets.apply(&client, "kept").await;
    let is_new = |one: &Found| one.uid.is_some() && former.iter().all(|former| former.uid != one.uid);
    let is_gone = |one: &Found| one.name == "gone" && one.uid.is_none();
    let found = failing
        .when(|found| found.iter().any(is_new) && found.iter().any(is_gone))
        .await;

    assert_eq!(watched.presences(), known, "somebody has noticed");
    // The watch of before has ended, which is a trouble until the list after it is complete.
    until(|| manager.statuses().of("widgets") == Some(RunnableStatus::Ready)).await;
    assert!(
        found[2..].iter().all(|one| one.uid.is_none() || is_new(one)),
        "a former object: {found:#?}"
    );
    assert!(
        found.iter().all(|one| one.attempt == 1),
        "failures of another object: {found:#?}"
    );
    running.stop().await.unwrap();
}
