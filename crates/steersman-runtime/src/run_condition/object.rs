// SPDX-License-Identifier: Apache-2.0
//! Conditions on one object.

use std::sync::Arc;

use futures::{StreamExt, stream};
use serde::de::DeserializeOwned;
use steersman_cache::{Event, InformerHandle, Registration, Resource, Scope, WatchError};
use steersman_cluster::{Cluster, POLL_EVERY, PresenceWatch};
use steersman_core::{ObjectKey, Presence, PresenceStatus};
use tokio::sync::watch;

use super::PresenceStream;
use crate::KnownKind;

/// Test of an object.
type Holds<K> = Arc<dyn Fn(&K) -> bool + Send + Sync>;

/// Watches one object.
pub(super) fn watch_object<K: KnownKind + DeserializeOwned + Send + Sync + 'static>(
    cluster: &Cluster,
    key: &ObjectKey,
    holds: &Holds<K>,
) -> PresenceStream {
    let (cluster, key, holds) = (cluster.clone(), key.clone(), Arc::clone(holds));
    let begin = move || Watching::begin(&cluster, &key, &holds);
    let first = begin();
    let presence_statuses = stream::unfold(
        (first, begin, None),
        |(mut watching, begin, mut reported)| async move {
            loop {
                let presence_status = watching.next(reported.as_ref()).await;
                if presence_status.is_some() {
                    reported = presence_status.clone();
                    return presence_status
                        .map(|presence_status| (presence_status, (watching, begin, reported)));
                }
                // The informer was removed.
                watching = begin();
            }
        },
    );
    presence_statuses.boxed()
}

/// One informer of the object.
struct Watching {
    cluster: Cluster,
    resource: Resource,
    informer: InformerHandle,
    registration: Registration,
    /// State from its events. Without an event, the object does not exist.
    object: watch::Receiver<PresenceStatus>,
    /// Held while the kind is not installed: the server is not asked as long as that is known.
    presence: Option<PresenceWatch>,
}

impl Watching {
    fn begin<K: KnownKind + DeserializeOwned + Send + Sync + 'static>(
        cluster: &Cluster,
        key: &ObjectKey,
        holds: &Holds<K>,
    ) -> Self {
        let resource = Resource::of::<K>();
        let mut scope = Scope::all().fields(format!("metadata.name={}", key.name()));
        if !key.namespace().is_empty() {
            scope = scope.namespace(key.namespace());
        }
        let informer = cluster.cache().informer_in(&resource, &scope);
        let about = format!("{resource} {key}");
        let absent = PresenceStatus::new(Presence::Absent, format!("{about} does not exist"));
        let (reported, object) = watch::channel(absent);
        let holds = Arc::clone(holds);
        let registration = informer.handle("condition", move |event: &Event| {
            let object = event.object();
            let presence_status = match object.decoded::<K>() {
                _ if event.is_deletion() => {
                    PresenceStatus::new(Presence::Absent, format!("{about} was deleted"))
                }
                Ok(found) => PresenceStatus::new(
                    Presence::from(holds(&found)),
                    format!("{about} has resource version {}", object.resource_version()),
                ),
                Err(error) => PresenceStatus::new(Presence::Unknown, error.to_string()),
            };
            reported.send_replace(presence_status);
        });
        Self {
            cluster: cluster.clone(),
            resource,
            informer,
            registration,
            object,
            presence: None,
        }
    }

    /// Returns the next state that differs from the last one; `None` if the informer was removed.
    async fn next(&mut self, reported: Option<&PresenceStatus>) -> Option<PresenceStatus> {
        loop {
            let health = self.informer.health();
            if self.cluster.is_closed() {
                std::future::pending::<()>().await;
            }
            if health.ended {
                return None;
            }
            let object = self.object.borrow_and_update().clone();
            let because = |presence: Presence, trouble: &WatchError| {
                PresenceStatus::new(presence, format!("{}: {trouble}", self.resource))
            };
            let is_absent = health.error.as_deref() == Some(&WatchError::NotInstalled);
            let presence_status = match &health.error {
                Some(trouble) if is_absent => Some(because(Presence::Absent, trouble)),
                _ if self.registration.is_synced() => Some(object),
                Some(trouble) => Some(because(Presence::Unknown, trouble)),
                None => None,
            };
            if presence_status.is_some() && presence_status.as_ref() != reported {
                return presence_status;
            }
            if !is_absent {
                self.presence = None;
            } else if self.presence.is_none() {
                self.presence = Some(self.cluster.presence(&self.resource, POLL_EVERY));
            }
            tokio::select! {
                biased;
                _ = self.object.changed() => {}
                _ = self.informer.health_when(|now| (now.synced, &now.error) != (health.synced, &health.error)) => {}
                () = self.registration.synced(), if !self.registration.is_synced() => {}
            }
        }
    }
}
