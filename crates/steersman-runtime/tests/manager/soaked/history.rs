// SPDX-License-Identifier: Apache-2.0
//! All writes that the server accepted, in the order of its revisions, and their violations.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, WatchEvent, WatchParams},
};
use serde::Serialize;
use serde_json::json;
use steersman_cluster::Kind;
use steersman_testing::Fixture;
use tokio::sync::mpsc;

use super::{
    LEASE_DURATION, assert_none, now,
    operator::{BY, Book, FINALIZER, text_of},
};

/// The watch of the judge might tell of a deletion so much later than that of a replica.
const LAG: Duration = Duration::from_secs(5);

/// The objects that end the history, one of each kind.
const LAST: &str = "the-end";

/// A change of an object, as the server reported it.
#[derive(Debug)]
struct Change {
    revision: u64,
    at: Instant,
    object: String,
    uid: String,
    deleted: bool,
    has_finalizer: bool,
    what: What,
}

#[derive(Debug)]
enum What {
    /// An object of the operator, and who wrote it last.
    Object { by: Option<String> },
    /// The lease, and its holder.
    Lease { holder: String },
}

/// A history that is being written.
pub(super) struct History<'a> {
    lease: String,
    fixture: &'a Fixture,
    changes: mpsc::Receiver<Change>,
    _watching: tokio::task::JoinSet<()>,
}

/// A history that has ended.
pub(super) struct Ended(Vec<Change>);

impl<'a> History<'a> {
    pub(super) fn begin(fixture: &'a Fixture, lease: &str) -> Self {
        let (sender, changes) = mpsc::channel(200_000);
        let (client, namespace) = (fixture.client(), fixture.namespace());
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let leases: Api<Lease> = Api::namespaced(client, namespace);
        let mut watching = tokio::task::JoinSet::new();
        watching.spawn(follow(maps, sender.clone(), |map| What::Object {
            by: map.data.as_ref().and_then(|data| data.get(BY).cloned()),
        }));
        watching.spawn(follow(secrets, sender.clone(), |secret| What::Object {
            by: text_of(secret, BY),
        }));
        watching.spawn(follow(leases, sender, |lease| What::Lease {
            holder: lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone())
                .unwrap_or_default(),
        }));
        Self {
            lease: format!("Lease {lease}"),
            fixture,
            changes,
            _watching: watching,
        }
    }

    /// Everything up to now.
    pub(super) async fn end(mut self) -> Ended {
        // Each of the three watches has its own order, so each of them has to tell of its last object.
        let mut awaited = HashSet::from([
            mark::<ConfigMap>(self.fixture).await,
            mark::<Secret>(self.fixture).await,
            mark::<Lease>(self.fixture).await,
        ]);
        let mut changes = Vec::new();
        while !awaited.is_empty() {
            let change = self.changes.recv().await.unwrap();
            if change.deleted {
                awaited.remove(&change.uid);
            }
            changes.push(change);
        }
        changes.retain(|change| match change.what {
            What::Lease { .. } => change.object == self.lease,
            What::Object { .. } => !change.object.ends_with(LAST),
        });
        changes.sort_by_key(|change| change.revision);
        Ended(changes)
    }
}

impl Ended {
    /// No replica wrote an object while another one held the lease. Gives the number of writes.
    ///
    /// If a user deletes the lease, another candidate can create it, and the former holder can write until it notices that or its
    /// fence closes. Such writes are allowed for a while.
    pub(super) fn judge_writers(&self, seed: u64) -> usize {
        let (mut holder, mut writes, mut wrong) = ("", HashSet::new(), Vec::new());
        // Holder of the lease at its deletion by a user, and the time until which it might not have noticed.
        let mut robbed: Option<(&str, Instant)> = None;
        for change in &self.0 {
            match &change.what {
                What::Lease { holder: by } => {
                    holder = by;
                    if change.deleted {
                        robbed = Some((by, change.at + LEASE_DURATION + LAG));
                    }
                }
                What::Object { by: Some(by) } if !change.deleted && by.contains('/') => {
                    let is_new = writes.insert(by.clone());
                    let (replica, _) = by.split_once('/').unwrap_or_default();
                    let is_robbed = robbed.is_some_and(|(by, until)| by == replica && change.at < until);
                    if is_new && replica != holder && !is_robbed {
                        wrong.push(format!(
                            "revision {}: {} is written by {replica}, and {holder:?} holds the lease",
                            change.revision, change.object
                        ));
                    }
                }
                What::Object { .. } => {}
            }
        }
        assert_none(seed, "writes without the lease", &wrong);
        writes.len()
    }

    /// Every deleted object that had the finalizer was cleaned up, and the finalizer was released exactly once, as the server saw it.
    /// A replica does not learn of its release if the answer is lost, but never of two.
    pub(super) fn judge_finalizers(&self, seed: u64, book: &Book) {
        let held = self
            .0
            .iter()
            .filter(|change| change.has_finalizer && !change.deleted);
        let held: HashSet<&str> = held.map(|change| &*change.uid).collect();
        let deleted = self
            .0
            .iter()
            .filter(|change| change.deleted && held.contains(&*change.uid));
        let deleted: Vec<_> = deleted.map(|change| &change.uid).collect();
        let released = self.releases();
        let wrong: Vec<_> = book.note(|notes| {
            let counts = deleted.iter().map(|uid| {
                let cleaned = notes.cleaned.get(*uid).copied().unwrap_or(0);
                let acknowledged = notes.released.get(*uid).copied().unwrap_or(0);
                let released = released.get(&***uid).copied().unwrap_or(0);
                (uid.to_string(), cleaned, released, acknowledged)
            });
            let is_wrong = |(_, cleaned, released, acknowledged): &(String, u32, u32, u32)| {
                *cleaned == 0 || *released != 1 || *acknowledged > 1
            };
            counts.filter(is_wrong).collect()
        });
        assert_none(
            seed,
            "deleted objects, how often cleaned up, released, and told of the release",
            &wrong,
        );
        assert_eq!(
            deleted.len(),
            held.len(),
            "seed {seed}: all are deleted in the end"
        );
    }

    /// How often the finalizer of each object was released, by its uid. The server deletes a deleted object with the release of its
    /// last finalizer.
    fn releases(&self) -> HashMap<&str, u32> {
        let (mut holding, mut releases) = (HashSet::new(), HashMap::new());
        for change in &self.0 {
            if change.has_finalizer && !change.deleted {
                holding.insert(&*change.uid);
            } else if holding.remove(&*change.uid) {
                *releases.entry(&*change.uid).or_default() += 1;
            }
        }
        releases
    }

    /// No cached read said that an object is absent that the replica had seen and that was not deleted.
    pub(super) fn judge_absences(&self, seed: u64, book: &Book) {
        let deletions = self.0.iter().filter(|change| change.deleted);
        let deletions: HashMap<_, _> = deletions.map(|change| (&*change.uid, change.at)).collect();
        let absences = book.note(|notes| notes.absences.clone());
        let wrong: Vec<_> = absences
            .iter()
            .filter(|one| {
                deletions
                    .get(&*one.uid)
                    .is_none_or(|deleted| *deleted > one.at + LAG)
            })
            .map(|one| format!("{} missed {} ({})", one.replica, one.object, one.uid))
            .collect();
        assert_none(seed, "cached reads that missed an existing object", &wrong);
    }
}

/// Creates and deletes an object, and gives its uid.
async fn mark<K>(fixture: &Fixture) -> String
where
    K: Kind + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize,
{
    let objects: Api<K> = Api::namespaced(fixture.client(), fixture.namespace());
    let last = serde_json::from_value(json!({"metadata": {"name": LAST}})).unwrap();
    let last = objects.create(&PostParams::default(), &last).await.unwrap();
    _ = objects.delete(LAST, &DeleteParams::default()).await.unwrap();
    last.uid().unwrap()
}

/// Records each change of the objects of a kind.
async fn follow<K>(objects: Api<K>, sender: mpsc::Sender<Change>, what: fn(&K) -> What)
where
    K: Kind + kube::Resource<DynamicType = ()> + Clone + Debug,
{
    let mut from = "0".to_owned();
    loop {
        let watch = objects.watch(&WatchParams::default(), &from).await.unwrap();
        let mut watch = watch.boxed();
        while let Some(Ok(event)) = watch.next().await {
            let (object, deleted) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                _ => continue,
            };
            from = object.resource_version().unwrap();
            let change = Change {
                revision: from.parse().unwrap(),
                at: now(),
                object: format!("{} {}", K::kind(&()), object.name_any()),
                uid: object.uid().unwrap_or_default(),
                deleted,
                has_finalizer: object.finalizers().iter().any(|name| name == FINALIZER),
                what: what(&object),
            };
            if sender.send(change).await.is_err() {
                return;
            }
        }
    }
}
