// SPDX-License-Identifier: Apache-2.0
//! The part of a resource that an informer watches.

use std::{collections::BTreeSet, fmt};

use super::{Namespaces, selector};
use crate::{Object, ObjectDetail};

/// The part of a resource to list and watch.
///
/// ```
/// use steersman_cache::Scope;
///
/// let watched = |names: &str| names.split(',').fold(Scope::all(), Scope::namespace);
/// assert_eq!(watched("a, b"), Scope::all().namespace("a").namespace("b"));
/// assert_eq!(watched(""), Scope::all());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub struct Scope {
    namespaces: Namespaces,
    labels: Option<String>,
    fields: Option<String>,
    metadata_only: bool,
}

impl Scope {
    /// Selects all objects of the resource.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects objects of this namespace. Several calls select all of these namespaces. Default: all namespaces.
    ///
    /// An empty name means all namespaces, also next to other names, as in `WATCH_NAMESPACE`. White space around a name is
    /// ignored. The informer rejects an invalid name without a request
    /// ([`WatchError::InvalidNamespace`](crate::WatchError::InvalidNamespace)).
    ///
    /// The informer also rejects namespaces for a cluster-scoped kind without a request
    /// ([`WatchError::NotNamespaced`](crate::WatchError::NotNamespaced)). Namespaces in the
    /// [defaults](crate::CacheBuilder::defaults) of a cache do not apply to cluster-scoped kinds.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespaces.add(&namespace.into());
        self
    }

    /// Selects objects by a label selector, such as `tier=front,env!=test`.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Selects objects by a field selector, such as `spec.nodeName=node-1`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Requests only the metadata of the objects.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Returns true if the scope contains this namespace.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.namespaces.cover(namespace)
    }

    /// Returns whether the scope contains an object, or `None` if only a server can evaluate it.
    pub(crate) fn holds(&self, object: &Object) -> Option<bool> {
        let labels = self.labels.as_deref().unwrap_or_default();
        let fields = self.fields.as_deref().unwrap_or_default();
        if !self.covers(object.namespace()) {
            return Some(false);
        }
        match (
            selector::labels_match(labels, object),
            selector::fields_match(fields, object),
        ) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        }
    }

    /// Returns true if the scope contains all namespaces.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.namespaces.named().is_empty()
    }

    /// Returns the namespaces to list, one request each; one empty name means all namespaces.
    pub(crate) fn parts(&self) -> BTreeSet<String> {
        if self.is_everywhere() {
            BTreeSet::from([String::new()])
        } else {
            self.namespaces.named().clone()
        }
    }

    /// Returns the same scope with other namespaces.
    pub(crate) fn with_namespaces(&self, namespaces: Namespaces) -> Self {
        Self {
            namespaces,
            ..self.clone()
        }
    }

    pub(crate) fn is_metadata_only(&self) -> bool {
        self.metadata_only
    }

    /// Returns the same scope for whole objects.
    pub(crate) fn whole(&self) -> Self {
        Self {
            metadata_only: false,
            ..self.clone()
        }
    }

    /// Returns the same scope with this much of each object.
    pub(crate) fn wanted(&self, wanted: ObjectDetail) -> Self {
        match wanted {
            ObjectDetail::Full => self.whole(),
            ObjectDetail::Metadata => self.clone().metadata_only(),
        }
    }

    /// Returns the selectors as request parameters.
    pub(crate) fn selectors(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let labels = self.labels.as_deref().map(|labels| ("labelSelector", labels));
        labels
            .into_iter()
            .chain(self.fields.as_deref().map(|fields| ("fieldSelector", fields)))
    }
}

impl fmt::Display for Scope {
    /// Writes the restrictions of the scope, such as `namespaces=a,b labels=tier=front`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespaces = self
            .namespaces
            .named()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",");
        let words = [
            (!namespaces.is_empty()).then(|| format!("namespaces={namespaces}")),
            self.labels.as_ref().map(|labels| format!("labels={labels}")),
            self.fields.as_ref().map(|fields| format!("fields={fields}")),
            self.metadata_only.then(|| "metadata".to_owned()),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}
