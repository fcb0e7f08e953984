// SPDX-License-Identifier: Apache-2.0
//! The requests that an election makes.

use futures::{Stream, StreamExt, TryStreamExt, stream};
use kube::{
    api::WatchParams,
    core::{DynamicObject, ObjectMeta, WatchEvent},
};
use steersman_cache::Resource;
use steersman_cluster::{Cluster, ConnectError, Error, KindClient};
use steersman_core::{ObjectKey, Spawner};

use super::{Settings, record::Record};

/// One lease on one server, by a connection that nobody else uses.
#[derive(Debug)]
pub(super) struct Lock {
    leases: KindClient<DynamicObject>,
    key: ObjectKey,
    labels: Vec<(String, String)>,
    /// Closes its connections when it drops.
    _cluster: Cluster,
}

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Told {
    /// The lease as it is, or nothing if it is gone.
    Is(Option<Box<DynamicObject>>),
    /// The watch has to be begun anew.
    Over,
}

impl Lock {
    /// Connects, which sends nothing yet. It belongs to the runtime of the caller.
    pub(super) async fn connect(settings: &Settings) -> Result<Self, ConnectError> {
        let agent = format!("{}/leader-election", settings.cluster.user_agent());
        let cluster = settings.cluster.another("leader-election");
        let cluster = cluster
            .user_agent(agent)
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

    /// Writes a record: into this lease if nobody changed it since, or into a new one.
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

    /// What becomes of the lease after `seen`. Opening it is part of the stream.
    pub(super) fn watch(
        &self,
        seen: Option<&DynamicObject>,
    ) -> impl Stream<Item = Result<Told, Error>> + Send + use<> {
        let options = WatchParams::default().fields(&format!("metadata.name={}", self.key.name()));
        let (leases, namespace) = (self.leases.clone(), self.key.namespace().to_owned());
        // A watch from nowhere begins with what is there.
        let from = seen.and_then(|lease| lease.metadata.resource_version.clone());
        let opened = async move {
            let from = from.unwrap_or_default();
            leases.watch(&namespace, &options, &from).await
        };
        stream::once(opened)
            .try_flatten()
            .try_filter_map(|event| async move { Ok(told(event)) })
            .boxed()
    }
}

fn told(event: WatchEvent<DynamicObject>) -> Option<Told> {
    match event {
        WatchEvent::Added(lease) | WatchEvent::Modified(lease) => Some(Told::Is(Some(Box::new(lease)))),
        WatchEvent::Deleted(_) => Some(Told::Is(None)),
        WatchEvent::Bookmark(_) => None,
        WatchEvent::Error(_) => Some(Told::Over),
    }
}
