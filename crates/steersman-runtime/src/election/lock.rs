// SPDX-License-Identifier: Apache-2.0
//! Requests of an election.

use futures::{Stream, StreamExt, TryStreamExt, stream};
use kube::{
    api::WatchParams,
    core::{DynamicObject, ObjectMeta, WatchEvent},
};
use steersman_cache::Resource;
use steersman_cluster::{Cluster, ConnectError, Error, KindClient};
use steersman_core::{ObjectKey, Spawner};

use super::{Settings, record::Record};

/// One lease on one server, over a separate connection.
#[derive(Debug)]
pub(super) struct Lock {
    leases: KindClient<DynamicObject>,
    key: ObjectKey,
    labels: Vec<(String, String)>,
    /// Closes the connections on drop.
    _cluster: Cluster,
}

/// An item of a watch of the lease.
#[derive(Debug)]
pub(super) enum LeaseEvent {
    /// The current lease, or `None` if it was deleted.
    Is(Option<Box<DynamicObject>>),
    /// The watch was closed and has to be opened again.
    Over,
}

impl Lock {
    /// Makes the connection, which belongs to the runtime of the caller. Sends no request yet.
    pub(super) async fn connect(settings: &Settings) -> Result<Self, ConnectError> {
        let agent = format!("{}/leader-election", settings.cluster.user_agent());
        let cluster = settings.cluster.another("leader-election");
        let cluster = cluster
            .user_agent(agent)
            .field_manager("leader-election")
            .request_timeout(settings.timing.request())
            .spawner(Spawner::current())
            .build()
            .await?;
        let resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases");
        Ok(Self {
            leases: cluster.live().of(&resource),
            key: ObjectKey::new(&settings.namespace, &settings.lease),
            labels: settings.labels.clone().into_iter().collect(),
            _cluster: cluster,
        })
    }

    pub(super) async fn get(&self) -> Result<Option<DynamicObject>, Error> {
        let found = self.leases.get(&self.key).await?;
        Ok(found.map(|lease| (*lease).clone()))
    }

    /// Writes a record: into this lease if it is unchanged, or into a new one.
    pub(super) async fn write(
        &self,
        lease: Option<&DynamicObject>,
        record: &Record,
    ) -> Result<DynamicObject, Error> {
        let mut next = lease.cloned().unwrap_or_else(|| DynamicObject {
            types: None,
            metadata: ObjectMeta {
                name: Some(self.key.name().to_owned()),
                namespace: Some(self.key.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            data: serde_json::Value::Null,
        });
        if !self.labels.is_empty() {
            let labels = next.metadata.labels.get_or_insert_default();
            labels.extend(self.labels.iter().cloned());
        }
        record.write(&mut next);
        match lease {
            Some(_) => self.leases.update(&next).await,
            None => self.leases.create(&next).await,
        }
    }

    /// Streams the changes of the lease after `seen`. The stream opens the watch.
    pub(super) fn watch(
        &self,
        seen: Option<&DynamicObject>,
    ) -> impl Stream<Item = Result<LeaseEvent, Error>> + Send + use<> {
        let options = WatchParams::default().fields(&format!("metadata.name={}", self.key.name()));
        let (leases, namespace) = (self.leases.clone(), self.key.namespace().to_owned());
        // A watch without a resource version begins with the current state.
        let from = seen.and_then(|lease| lease.metadata.resource_version.clone());
        let opened = async move {
            let from = from.unwrap_or_default();
            leases.watch(&namespace, &options, &from).await
        };
        stream::once(opened)
            .try_flatten()
            .try_filter_map(|event| async move { Ok(lease_event(event)) })
            .boxed()
    }
}

fn lease_event(event: WatchEvent<DynamicObject>) -> Option<LeaseEvent> {
    match event {
        WatchEvent::Added(lease) | WatchEvent::Modified(lease) => Some(LeaseEvent::Is(Some(Box::new(lease)))),
        WatchEvent::Deleted(_) => Some(LeaseEvent::Is(None)),
        WatchEvent::Bookmark(_) => None,
        WatchEvent::Error(_) => Some(LeaseEvent::Over),
    }
}
