// SPDX-License-Identifier: Apache-2.0
//! The part of a resource that an informer watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

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
    selectors: Selectors,
    /// Selectors of single namespaces, instead of those of the scope.
    by_namespace: BTreeMap<String, Selectors>,
    metadata_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Selectors {
    labels: Option<String>,
    fields: Option<String>,
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
        self.selectors.labels = Some(selector.into());
        self
    }

    /// Selects objects by a field selector, such as `spec.nodeName=node-1`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.selectors.fields = Some(selector.into());
        self
    }

    /// Selects objects of this namespace by this label selector, instead of that of [`labels`](Self::labels). An empty
    /// selector selects all of them.
    ///
    /// It adds the namespace, as [`namespace`](Self::namespace) does. If the scope contains all namespaces, all of them are
    /// listed together, and selectors of single namespaces have no effect.
    ///
    /// ```
    /// use steersman_cache::Scope;
    ///
    /// let scope = Scope::all().labels("app=web").namespace("web").labels_in("kube-system", "k8s-app=kube-dns");
    /// assert_eq!(scope.to_string(), "namespaces=kube-system,web labels=app=web kube-system:labels=k8s-app=kube-dns");
    /// ```
    pub fn labels_in(mut self, namespace: &str, selector: impl Into<String>) -> Self {
        self.selectors_of(namespace).labels = Some(selector.into());
        self
    }

    /// As [`labels_in`](Self::labels_in), with a field selector.
    pub fn fields_in(mut self, namespace: &str, selector: impl Into<String>) -> Self {
        self.selectors_of(namespace).fields = Some(selector.into());
        self
    }

    /// Adds a namespace and returns its selectors.
    fn selectors_of(&mut self, namespace: &str) -> &mut Selectors {
        let namespace = namespace.trim();
        self.namespaces.add(namespace);
        match namespace {
            "" => &mut self.selectors,
            namespace => self.by_namespace.entry(namespace.to_owned()).or_default(),
        }
    }

    /// Requests only the metadata of the objects.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }

    /// Returns true if the scope contains this namespace. An empty name means all namespaces of the scope.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.namespaces.cover(namespace)
    }

    /// Returns whether the scope contains an object, or `None` if only a server can evaluate it.
    pub(crate) fn holds(&self, object: &Object) -> Option<bool> {
        // A cluster-scoped object is in no namespace of a scope that names some.
        if !self.is_everywhere() && !self.namespaces.named().contains(object.namespace()) {
            return Some(false);
        }
        let (labels, fields) = self.selected_in(object.namespace());
        match (
            selector::labels_match(labels.unwrap_or_default(), object),
            selector::fields_match(fields.unwrap_or_default(), object),
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

    /// Returns the named namespaces; none for all namespaces.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        self.namespaces.named().iter().map(String::as_str)
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

    /// Returns the selectors of a namespace as request parameters.
    pub(crate) fn selectors(&self, namespace: &str) -> impl Iterator<Item = (&'static str, &str)> {
        let (labels, fields) = self.selected_in(namespace);
        let labels = labels.map(|labels| ("labelSelector", labels));
        labels
            .into_iter()
            .chain(fields.map(|fields| ("fieldSelector", fields)))
    }

    /// Returns the label selector and the field selector of a namespace.
    fn selected_in(&self, namespace: &str) -> (Option<&str>, Option<&str>) {
        let own = self.by_namespace.get(namespace).filter(|_| !self.is_everywhere());
        let labels = own.and_then(|own| own.labels.as_ref());
        let fields = own.and_then(|own| own.fields.as_ref());
        (
            labels.or(self.selectors.labels.as_ref()).map(String::as_str),
            fields.or(self.selectors.fields.as_ref()).map(String::as_str),
        )
    }
}

impl Selectors {
    /// Returns the selectors in words, such as `labels=tier=front`.
    fn words(&self) -> impl Iterator<Item = String> {
        let labels = self.labels.as_ref().map(|labels| format!("labels={labels}"));
        let fields = self.fields.as_ref().map(|fields| format!("fields={fields}"));
        labels.into_iter().chain(fields)
    }
}

impl fmt::Display for Scope {
    /// Writes the restrictions of the scope, such as `namespaces=a,b labels=tier=front`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespaces = self.named().collect::<Vec<_>>().join(",");
        let of_namespace = |(namespace, own): (&String, &Selectors)| -> Vec<String> {
            own.words().map(|word| format!("{namespace}:{word}")).collect()
        };
        let words = (!namespaces.is_empty())
            .then(|| format!("namespaces={namespaces}"))
            .into_iter()
            .chain(self.selectors.words())
            .chain(self.by_namespace.iter().flat_map(of_namespace))
            .chain(self.metadata_only.then(|| "metadata".to_owned()));
        f.write_str(&words.collect::<Vec<_>>().join(" "))
    }
}
