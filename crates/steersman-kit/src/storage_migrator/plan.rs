// SPDX-License-Identifier: Apache-2.0
//! A migration that a CRD needs: its old versions, and the versions at which objects can be rewritten.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::{ResourceExt, core::ApiResource, core::GroupVersionKind};
use serde_json::Value;

/// Annotation of a CRD with the beginning of its migration.
pub(super) const CHECKPOINT: &str = "steersman.dev/storage-migration";

/// A migration of the objects of one CRD to its storage version.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) crd: String,
    pub(super) uid: String,
    /// Each change of the spec, such as another storage version, makes another generation and another migration.
    pub(super) generation: i64,
    pub(super) storage: String,
    pub(super) storage_schema: Value,
    /// Versions in `storedVersions` other than the storage version.
    pub(super) old: Vec<String>,
    /// Served versions; the storage version is the first one, if it is served.
    pub(super) served: Vec<Version>,
    /// Reports whether every version shows the whole object: there is a conversion webhook, or all schemas are equal.
    pub(super) is_uniform: bool,
    /// Revision of the kind at the beginning of this migration, if an earlier run has begun it.
    pub(super) checkpoint: Option<u64>,
}

/// A version of a CRD.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) resource: ApiResource,
    pub(super) schema: Value,
}

impl Plan {
    /// Returns the migration that a CRD needs, or `None` if all objects have the storage version.
    pub(super) fn of(crd: &CustomResourceDefinition) -> Option<Self> {
        let storage = crd.spec.versions.iter().find(|version| version.storage)?;
        let stored = crd.status.as_ref()?.stored_versions.iter().flatten();
        let old: Vec<String> = stored.filter(|name| **name != storage.name).cloned().collect();
        if old.is_empty() {
            return None;
        }
        let mut served: Vec<_> = crd.spec.versions.iter().filter(|it| it.served).collect();
        served.sort_by_key(|version| !version.storage);
        let plan = Self {
            crd: crd.name_any(),
            uid: crd.metadata.uid.clone().unwrap_or_default(),
            generation: crd.metadata.generation.unwrap_or_default(),
            storage: storage.name.clone(),
            storage_schema: schema_of(storage),
            is_uniform: has_webhook(crd) || has_one_schema(crd, &old),
            served: served.into_iter().map(|it| Version::of(crd, it)).collect(),
            old,
            checkpoint: None,
        };
        let checkpoint = crd.annotations().get(CHECKPOINT);
        let checkpoint = checkpoint.and_then(|value| plan.parse_checkpoint(value));
        Some(Self { checkpoint, ..plan })
    }

    /// Reports whether both are the same migration of the same CRD.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.uid, self.generation, &self.storage) == (&other.uid, other.generation, &other.storage)
    }

    /// Value of the annotation for a migration that begins at this revision.
    pub(super) fn checkpoint_at(&self, revision: u64) -> String {
        format!("{}{revision}", self.checkpoint_prefix())
    }

    fn checkpoint_prefix(&self) -> String {
        let (storage, generation, uid) = (&self.storage, self.generation, &self.uid);
        format!("storage={storage} generation={generation} uid={uid} resourceVersion=")
    }

    fn parse_checkpoint(&self, value: &str) -> Option<u64> {
        value.strip_prefix(&self.checkpoint_prefix())?.parse().ok()
    }
}

impl Version {
    fn of(crd: &CustomResourceDefinition, version: &CustomResourceDefinitionVersion) -> Self {
        let (names, group) = (&crd.spec.names, &crd.spec.group);
        let gvk = GroupVersionKind::gvk(group, &version.name, &names.kind);
        Self {
            resource: ApiResource::from_gvk_with_plural(&gvk, &names.plural),
            schema: schema_of(version),
        }
    }
}

fn has_webhook(crd: &CustomResourceDefinition) -> bool {
    let conversion = crd.spec.conversion.as_ref();
    conversion.is_some_and(|conversion| conversion.strategy == "Webhook")
}

/// Reports whether all versions that clients use or used have the same schema.
fn has_one_schema(crd: &CustomResourceDefinition, old: &[String]) -> bool {
    let is_used = |it: &&CustomResourceDefinitionVersion| it.served || it.storage || old.contains(&it.name);
    let mut schemas = crd.spec.versions.iter().filter(is_used).map(schema_of);
    let first = schemas.next();
    schemas.all(|schema| Some(&schema) == first.as_ref())
}

fn schema_of(version: &CustomResourceDefinitionVersion) -> Value {
    let schema = version.schema.as_ref();
    let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
    // A schema from the server encodes as JSON again.
    schema.map_or(Value::Null, |schema| {
        serde_json::to_value(schema).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(stored: &[&str], beta: &Value, annotations: &Value) -> CustomResourceDefinition {
        let version = |name: &str, storage: bool, schema: &Value| json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}});
        let alpha = json!({"type": "object"});
        serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com", "uid": "u1", "generation": 2, "annotations": annotations},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [version("v1alpha1", false, &alpha), version("v1beta1", true, beta)],
            },
            "status": {"storedVersions": stored},
        }))
        .unwrap()
    }

    #[test]
    fn only_an_old_stored_version_needs_a_migration() {
        let object = json!({"type": "object"});
        assert!(Plan::of(&crd(&["v1beta1"], &object, &json!({}))).is_none());
        let plan = Plan::of(&crd(&["v1alpha1", "v1beta1"], &object, &json!({}))).unwrap();
        assert_eq!((plan.old, plan.is_uniform), (vec!["v1alpha1".to_owned()], true));
        assert_eq!(plan.served[0].resource.version, "v1beta1");
        let other = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
        let plan = Plan::of(&crd(&["v1alpha1", "v1beta1"], &other, &json!({}))).unwrap();
        assert!(!plan.is_uniform);
    }

    #[test]
    fn a_checkpoint_of_another_generation_is_ignored() {
        let object = json!({"type": "object"});
        let plan = Plan::of(&crd(&["v1alpha1"], &object, &json!({}))).unwrap();
        let found = |value: String| {
            let annotated = crd(&["v1alpha1"], &object, &json!({CHECKPOINT: value}));
            Plan::of(&annotated).unwrap().checkpoint
        };
        assert_eq!(found(plan.checkpoint_at(42)), Some(42));
        let earlier = Plan {
            generation: 1,
            ..plan
        };
        assert_eq!(found(earlier.checkpoint_at(42)), None);
        assert_eq!(found("garbage".to_owned()), None);
    }
}
