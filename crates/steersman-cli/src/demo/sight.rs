// SPDX-License-Identifier: Apache-2.0
//! An informer of one kind, and conditions to wait for.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use steersman_cache::{Event, InformerHandle, Registration, Resource};
use steersman_cluster::{Client, Cluster, Kind};
use steersman_core::{Clock, ObjectKey};
use tokio::sync::watch;

use super::step::StepError;

/// Timeout of every wait in the demo.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Observes the objects of a kind on one server.
pub(crate) struct Sight<K> {
    client: Client,
    clock: Arc<dyn Clock>,
    changed: watch::Receiver<()>,
    _informer: InformerHandle,
    _registration: Registration,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Sight<K> {
    /// Starts the informer.
    pub(crate) async fn open(cluster: &Cluster) -> Self {
        let informer = cluster.cache().informer(&Resource::of::<K>());
        let (sender, changed) = watch::channel(());
        let registration = informer.handle("demo", move |_: &Event| {
            sender.send_replace(());
        });
        informer.synced().await;
        Self {
            client: cluster.client(),
            clock: Arc::clone(cluster.clock()),
            changed,
            _informer: informer,
            _registration: registration,
            kind: PhantomData,
        }
    }

    /// Waits until `find` returns a value for an object, which might not exist.
    ///
    /// # Errors
    /// On timeout; the message contains `what`.
    pub(crate) async fn until<T>(
        &self,
        what: impl fmt::Display,
        key: &ObjectKey,
        mut find: impl FnMut(Option<&K>) -> Option<T>,
    ) -> Result<T, StepError> {
        let mut changed = self.changed.clone();
        let deadline = self.clock.now() + LIMIT;
        loop {
            changed.mark_unchanged();
            let object = self.client.get::<K>(key).await?;
            if let Some(found) = find(object.as_deref()) {
                return Ok(found);
            }
            tokio::select! {
                biased;
                change = changed.changed() => if change.is_err() {
                    return Err(StepError::Blind);
                },
                () = self.clock.sleep_until(deadline) => {
                    let what = what.to_string();
                    return Err(StepError::NotInTime { what, limit: LIMIT });
                }
            }
        }
    }

    /// Returns the known state of an object.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, StepError> {
        Ok(self.client.get::<K>(key).await?)
    }
}

impl<K> fmt::Debug for Sight<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}
