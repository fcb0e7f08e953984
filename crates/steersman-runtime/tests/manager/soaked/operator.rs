// SPDX-License-Identifier: Apache-2.0
//! The operator: each ConfigMap has a finalizer and a Secret with its value.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Resource, ResourceExt};
use serde_json::json;
use steersman_cluster::{Client, DeleteOptions, Error};
use steersman_core::{Action, ObjectKey};
use steersman_runtime::{BoxError, Context, Reconciler, Request};

use super::now;

pub(super) const FINALIZER: &str = "soak.steersman.example/child";

/// Last writer of an object: the identity of the replica, and the number of its write.
pub(super) const BY: &str = "by";

/// Notes of all replicas of one seed.
#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Notes>);

#[derive(Debug, Default)]
pub(super) struct Notes {
    /// How often the child of a deleted ConfigMap was cleaned up, by its uid.
    pub(super) cleaned: HashMap<String, u32>,
    /// How often the server acknowledged that the finalizer is released, by the uid.
    pub(super) released: HashMap<String, u32>,
    /// Cached reads that gave nothing although the replica had seen the object before.
    pub(super) absences: Vec<Absence>,
}

/// A cached read that gave nothing, of an object that was there once.
#[derive(Clone, Debug)]
pub(super) struct Absence {
    pub(super) replica: String,
    pub(super) object: String,
    pub(super) uid: String,
    pub(super) at: Instant,
}

impl Book {
    pub(super) fn note<T>(&self, note: impl FnOnce(&mut Notes) -> T) -> T {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The reconciler of one replica.
#[derive(Debug)]
pub(super) struct Operator {
    identity: String,
    book: std::sync::Arc<Book>,
    /// Counts writes, so that no two of them look the same.
    writes: AtomicU64,
    /// The uid of each object as this replica saw it last.
    seen: Mutex<HashMap<String, String>>,
}

impl Operator {
    pub(super) fn new(identity: String, book: std::sync::Arc<Book>) -> Self {
        Self {
            identity,
            book,
            writes: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    fn sign(&self) -> String {
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        format!("{}/{number}", self.identity)
    }

    /// Reads from the cache, and notes an object that is absent now and was not before.
    async fn read<K>(&self, client: &Client, key: &ObjectKey) -> Result<Option<std::sync::Arc<K>>, Error>
    where
        K: steersman_cluster::Kind + Resource<DynamicType = ()>,
    {
        let found = client.get::<K>(key).await?;
        let object = format!("{} {}", K::kind(&()), key.name());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &found {
            Some(found) => _ = seen.insert(object, found.uid().unwrap_or_default()),
            None => {
                if let Some(uid) = seen.remove(&object) {
                    let absence = Absence {
                        replica: self.identity.clone(),
                        object,
                        uid,
                        at: now(),
                    };
                    self.book.note(|notes| notes.absences.push(absence));
                }
            }
        }
        Ok(found)
    }

    async fn clean_up(&self, client: &Client, key: &ObjectKey, map: &ConfigMap) -> Result<(), BoxError> {
        if !map.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(());
        }
        delete_child(client, key).await?;
        let uid = map.uid().unwrap_or_default();
        self.book
            .note(|notes| *notes.cleaned.entry(uid.clone()).or_default() += 1);
        let mut map = map.clone();
        map.finalizers_mut().retain(|name| name != FINALIZER);
        map.data
            .get_or_insert_default()
            .insert(BY.to_owned(), self.sign());
        match client.update(&map).await {
            Ok(_) => self
                .book
                .note(|notes| *notes.released.entry(uid).or_default() += 1),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn keep_child(&self, client: &Client, key: &ObjectKey, map: &ConfigMap) -> Result<(), BoxError> {
        let value = value_of(map);
        match self.read::<Secret>(client, key).await? {
            Some(secret) if value_of_child(&secret) == value && owner_of(&secret) == map.uid() => {}
            Some(secret) => {
                let mut child = self.child(key, map, &value);
                child.metadata.resource_version = secret.resource_version();
                client.update(&child).await?;
            }
            None => _ = client.create(&self.child(key, map, &value)).await?,
        }
        Ok(())
    }

    fn child(&self, key: &ObjectKey, map: &ConfigMap, value: &str) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut child: Secret = serde_json::from_value(json!({
            "metadata": {"name": key.name(), "namespace": key.namespace()},
        }))
        .unwrap();
        child.metadata.owner_references = map.controller_owner_ref(&()).map(|owner| vec![owner]);
        let data = [("value", bytes(value)), (BY, bytes(&self.sign()))];
        child.data = Some(data.map(|(name, value)| (name.to_owned(), value)).into());
        child
    }
}

impl Reconciler for Operator {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let (client, key) = (cx.client(), request.key());
        let Some(map) = self.read::<ConfigMap>(client, key).await? else {
            // Created by a replica that did not know yet that its owner is deleted.
            if self.read::<Secret>(client, key).await?.is_some() {
                delete_child(client, key).await?;
            }
            return Ok(Action::await_change());
        };
        if map.metadata.deletion_timestamp.is_some() {
            self.clean_up(client, key, &map).await?;
            return Ok(Action::await_change());
        }
        if !map.finalizers().iter().any(|name| name == FINALIZER) {
            let mut map = ConfigMap::clone(&map);
            map.finalizers_mut().push(FINALIZER.to_owned());
            map.data
                .get_or_insert_default()
                .insert(BY.to_owned(), self.sign());
            client.update(&map).await?;
        }
        self.keep_child(client, key, &map).await?;
        Ok(Action::await_change())
    }
}

async fn delete_child(client: &Client, key: &ObjectKey) -> Result<(), Error> {
    match client.delete::<Secret>(key, DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn value_of(map: &ConfigMap) -> String {
    let data = map.data.as_ref();
    data.and_then(|data| data.get("value").cloned())
        .unwrap_or_default()
}

pub(super) fn value_of_child(secret: &Secret) -> String {
    text_of(secret, "value").unwrap_or_default()
}

pub(super) fn text_of(secret: &Secret, name: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(name)?;
    String::from_utf8(bytes.0.clone()).ok()
}

pub(super) fn owner_of(secret: &Secret) -> Option<String> {
    secret.owner_references().first().map(|owner| owner.uid.clone())
}
