// SPDX-License-Identifier: Apache-2.0
//! The state that the server's lock guards.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::SystemTime,
};

use serde_json::{Value, json};

use crate::{
    admission::Admission,
    auth::{Authenticator, token::Signer},
    clock::rfc3339,
    fault::Rules,
    handler::Target,
    random::Random,
    resource::{Registry, Resource},
    store::{Object, Store, Stored},
};

/// The enabled features of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) rbac: bool,
    pub(crate) garbage_collection: bool,
    pub(crate) namespace_deletion: bool,
    pub(crate) quota_usage: bool,
    pub(crate) policy_status: bool,
    /// Webhook configurations take effect.
    pub(crate) webhooks: bool,
    /// Background work runs with the write that causes it.
    pub(crate) immediate: bool,
}

/// The state of a server.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) random: Random,
    pub(crate) settings: Settings,
    pub(crate) authenticator: Authenticator,
    pub(crate) signer: Signer,
    pub(crate) faults: Rules,
    /// Queued background work.
    pub(crate) pending: VecDeque<crate::background::Work>,
    /// Counter of schema editions and storage epochs.
    pub(crate) counter: u64,
    pub(crate) owners: crate::background::collect::Owners,
    pub(crate) expiry: crate::background::expiry::Expiry,
    pub(crate) compaction: crate::store::compaction::Compaction,
    /// The uid and generation of each served CRD.
    pub(crate) served_definitions: BTreeMap<String, String>,
    pub(crate) discovery: crate::handler::discovery::Cache,
    pub(crate) policies: crate::policy::Policies,
    pub(crate) metrics: crate::handler::metrics::Metrics,
    pub(crate) world: crate::workloads::World,
    pub(crate) hooks: crate::admission::Hooks,
}

impl State {
    pub(crate) fn next_count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Returns the next count; a request that is handled again gets the same one.
    pub(crate) fn repeated_count(&mut self) -> u64 {
        let Self { random, counter, .. } = self;
        random.repeated(|_| {
            *counter += 1;
            *counter
        })
    }
}

/// The state, and the time at which a request is served.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) now: SystemTime,
    /// Warnings of admission plugins for the client.
    pub(crate) warnings: Vec<String>,
    /// The request whose writes pass admission hooks. Background work has none: no hook sees its writes.
    pub(crate) admission: Option<Admission<'a>>,
}

impl<'a> Context<'a> {
    /// Creates the context of work that no request asked for.
    pub(crate) fn of_server(state: &'a mut State, now: SystemTime) -> Self {
        Self {
            state,
            now,
            warnings: Vec::new(),
            admission: None,
        }
    }
}

impl Context<'_> {
    /// Runs a part of a request whose writes are already admitted.
    pub(crate) fn admitted<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let progress = self.admission.take();
        let result = work(self);
        self.admission = progress;
        result
    }

    /// Returns the current time in the format of objects.
    pub(crate) fn timestamp(&self) -> Value {
        Value::from(rfc3339(self.now))
    }

    /// Stores an object and queues the work that follows.
    pub(crate) fn put(&mut self, resource: &Arc<Resource>, key: &str, object: Object) -> Arc<Stored> {
        let stored = self
            .state
            .store
            .put(resource.storage, key, object, resource.edition());
        crate::background::after_write(self, resource, key);
        stored
    }

    /// Removes an object and queues the work that follows.
    pub(crate) fn remove(&mut self, resource: &Arc<Resource>, key: &str) -> Option<Arc<Stored>> {
        let removed = self.state.store.remove(resource.storage, key)?;
        crate::background::after_removal(self, resource, key, &removed);
        Some(removed)
    }

    /// Returns an object of a built-in kind.
    pub(crate) fn find(&self, group: &str, plural: &str, key: &str) -> Option<&Arc<Stored>> {
        let resource = self.state.registry.find(group, plural)?;
        self.state.store.get(resource.storage, key)
    }

    /// Returns all objects of a built-in kind.
    pub(crate) fn all(&self, group: &str, plural: &str) -> impl Iterator<Item = &Arc<Stored>> {
        let storage = self
            .state
            .registry
            .find(group, plural)
            .map(|resource| resource.storage);
        storage
            .into_iter()
            .flat_map(|storage| self.state.store.all(storage))
            .map(|(_, stored)| stored)
    }

    /// Returns the objects of a built-in kind in one namespace.
    pub(crate) fn in_namespace(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
    ) -> impl Iterator<Item = &Arc<Stored>> {
        let resource = self.state.registry.find(group, plural);
        let storage = resource.map(|resource| resource.storage);
        storage
            .into_iter()
            .flat_map(move |storage| self.state.store.within(storage, namespace))
    }

    /// Stores an object that the server itself creates, and sets its metadata.
    pub(crate) fn plant(
        &mut self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
        fields: Value,
    ) -> Option<Arc<Stored>> {
        let resource = Arc::clone(self.state.registry.find(group, plural)?);
        let Value::Object(mut object) = fields else {
            return None;
        };
        let mut metadata = object.remove("metadata").unwrap_or_else(|| json!({}));
        metadata["name"] = json!(name);
        if resource.namespaced {
            metadata["namespace"] = json!(namespace);
        }
        metadata["uid"] = json!(self.state.random.uid());
        metadata["creationTimestamp"] = self.timestamp();
        object.insert("metadata".to_owned(), metadata);
        let target = Target {
            resource: Arc::clone(&resource),
            version: 0,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
        };
        crate::managed::on_update(self, &target, None, &mut object, "kube-apiserver");
        let key = resource.key(namespace, name);
        Some(self.put(&resource, &key, object))
    }
}
