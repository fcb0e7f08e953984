// SPDX-License-Identifier: Apache-2.0
//! Resources as data: names, versions, schemas and the few kind-specific rules.

pub(crate) mod builtin;
pub(crate) mod registry;
pub(crate) mod strategy;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    schema::Schema,
    status::Qualified,
    store::{Object, StorageId},
};

pub(crate) use registry::Registry;
pub(crate) use strategy::Strategy;

/// One kind with all its versions.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) namespaced: bool,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) verbs: Vec<String>,
    pub(crate) versions: Vec<Version>,
    pub(crate) storage: StorageId,
    pub(crate) strategy: Strategy,
    /// Set for kinds that a CRD defines.
    pub(crate) custom: Option<Custom>,
    /// Watches that started under another epoch are closed.
    pub(crate) epoch: u64,
    /// Watches from before this revision get 410 Expired.
    pub(crate) floor: u64,
}

/// Properties of a kind that a CRD defines.
#[derive(Clone, Debug)]
pub(crate) struct Custom {
    /// The CRD's name.
    pub(crate) definition: String,
    /// Edition of the CRD's schemas; objects of another edition are converted when read.
    pub(crate) edition: u64,
    pub(crate) terminating: bool,
    /// The webhook that converts objects between versions; without one, versions differ in name only.
    pub(crate) converter: Option<Arc<crate::crd::conversion::Converter>>,
    /// The storage version of each edition.
    pub(crate) written: BTreeMap<u64, String>,
}

/// One version of a kind.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    /// The table columns of a custom resource, except the name.
    pub(crate) columns: Vec<crate::table::Column>,
    pub(crate) served: bool,
    pub(crate) schema: Arc<Schema>,
    pub(crate) cel: Option<crate::cel::Rules>,
    pub(crate) subresources: Vec<Subresource>,
    pub(crate) scale: Option<ScalePaths>,
    pub(crate) selectable: Vec<String>,
    pub(crate) deprecation: Option<String>,
}

/// One subresource, as discovery shows it.
#[derive(Clone, Debug)]
pub(crate) struct Subresource {
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) verbs: Vec<String>,
}

/// The paths that a scale reads and writes.
#[derive(Clone, Debug)]
pub(crate) struct ScalePaths {
    pub(crate) spec: Vec<String>,
    pub(crate) status: Vec<String>,
    pub(crate) selector: Option<Vec<String>>,
}

impl Resource {
    pub(crate) fn qualified(&self) -> Qualified<'_> {
        Qualified {
            group: &self.group,
            name: &self.plural,
        }
    }

    pub(crate) fn qualified_kind(&self) -> Qualified<'_> {
        Qualified {
            // The validation of the real server treats Events of both groups as one kind.
            group: if self.is("events.k8s.io", "events") {
                ""
            } else {
                &self.group
            },
            name: &self.kind,
        }
    }

    pub(crate) fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Returns the version in which objects are stored.
    pub(crate) fn storage_version(&self) -> &Version {
        &self.versions[self.strategy.storage_version.min(self.versions.len() - 1)]
    }

    /// Returns the storage key of an object.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{namespace}/{name}")
        } else {
            name.to_owned()
        }
    }

    /// Returns the key prefix of a namespace.
    pub(crate) fn prefix(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("{namespace}/")
        } else {
            String::new()
        }
    }

    pub(crate) fn api_version(&self, version: &str) -> String {
        api_version(&self.group, version)
    }

    pub(crate) fn edition(&self) -> u64 {
        self.custom.as_ref().map_or(0, |custom| custom.edition)
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

impl Version {
    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    pub(crate) fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

/// Returns `group/version`, or the version alone for the core group.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Returns the value at a path of plain fields.
pub(crate) fn at<'a>(object: &'a Object, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(first.as_ref())?, |value, field| {
        value.get(field.as_ref())
    })
}
