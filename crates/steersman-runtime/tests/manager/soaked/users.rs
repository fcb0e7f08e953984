// SPDX-License-Identifier: Apache-2.0
//! Users of the operator, who speak to the server directly.

use std::collections::HashMap;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use steersman_testing::Fixture;

use super::super::managed::config_map;
use super::{
    Chance,
    operator::{BY, FINALIZER, owner_of, value_of, value_of_child},
};

/// How many names there are; a name that was deleted is used again.
const NAMES: u64 = 24;

pub(super) struct Users<'a> {
    fixture: &'a Fixture,
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    leases: Api<Lease>,
}

impl<'a> Users<'a> {
    pub(super) fn new(fixture: &'a Fixture) -> Self {
        let namespace = fixture.namespace();
        Self {
            fixture,
            maps: Api::namespaced(fixture.client(), namespace),
            secrets: Api::namespaced(fixture.client(), namespace),
            leases: Api::namespaced(fixture.client(), namespace),
        }
    }

    /// Creates, changes or deletes an object, or deletes its child. It might not exist, or exist already.
    pub(super) async fn act(&self, chance: &mut Chance) {
        let name = format!("object-{}", chance.below(NAMES));
        let value = chance.below(1000).to_string();
        match chance.below(8) {
            0..4 => {
                let map = config_map(self.fixture, &name, &value);
                tolerate(self.maps.create(&PostParams::default(), &map).await);
            }
            4..6 => {
                let change = json!({"data": {"value": value, BY: "user"}});
                let change = Patch::Merge(&change);
                tolerate(self.maps.patch(&name, &PatchParams::default(), &change).await);
            }
            6 => tolerate(self.maps.delete(&name, &DeleteParams::default()).await),
            _ => tolerate(self.secrets.delete(&name, &DeleteParams::default()).await),
        }
    }

    /// Missing and superfluous children of each object.
    pub(super) async fn unfinished(&self) -> Vec<String> {
        let (maps, secrets) = self.all().await;
        let children = secrets.iter().map(|secret| (secret.name_any(), secret));
        let mut children: HashMap<_, _> = children.collect();
        let mut unfinished = Vec::new();
        for map in &maps {
            let name = map.name_any();
            let child = children.remove(&name);
            let is_kept =
                |child: &Secret| value_of_child(child) == value_of(map) && owner_of(child) == map.uid();
            if map.metadata.deletion_timestamp.is_some() {
                unfinished.push(format!("{name} is not cleaned up"));
            } else if !map.finalizers().iter().any(|name| name == FINALIZER) {
                unfinished.push(format!("{name} has no finalizer"));
            } else if !child.is_some_and(is_kept) {
                unfinished.push(format!("{name} has no child with its value"));
            }
        }
        unfinished.extend(
            children
                .keys()
                .map(|name| format!("{name} is a child without a parent")),
        );
        unfinished
    }

    /// Objects that are not deleted yet.
    pub(super) async fn left(&self) -> Vec<String> {
        let (maps, secrets) = self.all().await;
        let names = maps.iter().map(ResourceExt::name_any);
        names.chain(secrets.iter().map(ResourceExt::name_any)).collect()
    }

    /// Holder of the lease.
    pub(super) async fn holder(&self, lease: &str) -> Option<String> {
        self.leases.get_opt(lease).await.unwrap()?.spec?.holder_identity
    }

    async fn all(&self) -> (Vec<ConfigMap>, Vec<Secret>) {
        let everything = ListParams::default();
        let maps = self.maps.list(&everything).await.unwrap().items;
        (maps, self.secrets.list(&everything).await.unwrap().items)
    }

    pub(super) async fn delete_all(&self) {
        for map in self.all().await.0 {
            tolerate(self.maps.delete(&map.name_any(), &DeleteParams::default()).await);
        }
    }

    pub(super) async fn delete_lease(&self, name: &str) {
        tolerate(self.leases.delete(name, &DeleteParams::default()).await);
    }
}

/// Users name objects that do not exist, or exist already; anything else is an error of the test.
fn tolerate<T>(answer: Result<T, kube::Error>) {
    match answer {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        other => _ = other.unwrap(),
    }
}
