// SPDX-License-Identifier: Apache-2.0
//! Queries to a store.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use kube::core::{Expression, Selector};

use super::postings::Postings;
use crate::{
    Object,
    index::{Equals, Index, IndexValue, Term},
};

/// Selects objects. All conditions must hold; an empty query selects all objects.
///
/// The store looks up a namespace, an index, and a label that equals a value, is one of several, or exists. It creates the index
/// of namespaces or of a label on the first query for it. It then scans the results of the smallest lookup for the other
/// conditions. A query without a lookup scans every object.
///
/// ```
/// use kube::core::{Expression, Selector};
/// use steersman_cache::Query;
///
/// let front = Query::new().namespace("web").label("tier", "front").limit(10);
/// let not_old = Query::new().labels(Expression::NotEqual("release".into(), "old".into()));
/// let same = Query::new().labels(Selector::from_iter([("tier", "front")]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Query {
    namespace: Option<Box<str>>,
    labels: Vec<Expression>,
    terms: Vec<Arc<dyn Term>>,
    limit: Option<usize>,
}

impl Query {
    /// Selects all objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only objects of this namespace. The last call wins. Default: an empty name, which means all namespaces.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace).filter(|name| !name.is_empty()).map(Into::into);
        self
    }

    /// Selects only objects whose label has this value.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels
            .push(Expression::Equal(key.to_owned(), value.to_owned()));
        self
    }

    /// Selects only objects whose labels match a [`Selector`](kube::core::Selector) or an [`Expression`].
    #[must_use]
    pub fn labels(mut self, selector: impl IntoIterator<Item = Expression>) -> Self {
        self.labels.extend(selector);
        self
    }

    /// Selects only objects with this value in an index.
    #[must_use]
    pub fn index<V: IndexValue>(mut self, index: &Index<V>, value: impl Into<V>) -> Self {
        self.terms.push(Arc::new(Equals {
            index: index.clone(),
            value: value.into(),
        }));
        self
    }

    /// Limits the number of objects. Default: no limit.
    #[must_use]
    pub fn limit(mut self, objects: usize) -> Self {
        self.limit = Some(objects);
        self
    }

    /// Returns true if an object matches, ignoring the limit. For objects outside a store.
    #[must_use]
    pub fn matches(&self, object: &Arc<Object>) -> bool {
        self.matches_header(object) && self.terms.iter().all(|term| term.matches(object))
    }

    pub(super) fn matches_header(&self, object: &Object) -> bool {
        let in_namespace = self
            .namespace
            .as_ref()
            .is_none_or(|namespace| **namespace == *object.namespace());
        in_namespace
            && self
                .labels
                .iter()
                .all(|expression| holds(expression, |key| object.label(key)))
    }

    /// Returns the namespace, if set.
    #[must_use]
    pub fn wanted_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the label conditions as a selector for a server.
    #[must_use]
    pub fn label_selector(&self) -> Selector {
        self.labels.iter().cloned().collect()
    }

    /// Returns true if the query uses an [`index`](Self::index), which no server knows.
    #[must_use]
    pub fn has_index(&self) -> bool {
        !self.terms.is_empty()
    }

    /// Returns the conditions that a label index can look up.
    pub(super) fn wanted_labels(&self) -> impl Iterator<Item = (&str, Sought<'_>)> {
        self.labels.iter().filter_map(sought)
    }

    pub(super) fn terms(&self) -> &[Arc<dyn Term>] {
        &self.terms
    }

    /// Returns the limit; `usize::MAX` without one.
    #[must_use]
    pub fn limited(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// Returns the same query with the limit raised by `more` objects.
    pub(crate) fn with_room(&self, more: usize) -> Self {
        let mut query = self.clone();
        query.limit = self.limit.map(|limit| limit.saturating_add(more));
        query
    }
}

/// A lookup in an index. A slot has at most one of the values.
pub(super) enum Sought<'a> {
    One(&'a str),
    OneOf(&'a BTreeSet<String>),
    Any,
}

impl Sought<'_> {
    /// Returns the number of matching slots.
    pub(super) fn count(&self, postings: &Postings<Box<str>>) -> usize {
        match self {
            Self::One(value) => postings.count(*value),
            Self::OneOf(values) => values.iter().map(|value| postings.count(value.as_str())).sum(),
            Self::Any => postings.occupied().count(),
        }
    }

    pub(super) fn slots(&self, postings: &Postings<Box<str>>) -> Vec<u32> {
        match self {
            Self::One(value) => postings.slots(*value).collect(),
            Self::OneOf(values) => {
                let slots = values.iter().flat_map(|value| postings.slots(value.as_str()));
                slots.collect()
            }
            Self::Any => postings.occupied().collect(),
        }
    }
}

fn sought(expression: &Expression) -> Option<(&str, Sought<'_>)> {
    match expression {
        Expression::Equal(key, value) => Some((key, Sought::One(value))),
        Expression::In(key, values) => Some((key, Sought::OneOf(values))),
        Expression::Exists(key) => Some((key, Sought::Any)),
        // Most objects lack the label or have another value.
        Expression::NotIn(..) | Expression::NotEqual(..) | Expression::DoesNotExist(_) => None,
    }
}

/// Evaluates an expression. kube's version needs a map of owned strings, built for every object.
fn holds<'a>(expression: &Expression, label: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
    match expression {
        Expression::In(key, values) => label(key).is_some_and(|value| values.contains(&*value)),
        Expression::NotIn(key, values) => label(key).is_none_or(|value| !values.contains(&*value)),
        Expression::Equal(key, value) => label(key).is_some_and(|found| found == *value),
        Expression::NotEqual(key, value) => label(key).is_none_or(|found| found != *value),
        Expression::Exists(key) => label(key).is_some(),
        Expression::DoesNotExist(key) => label(key).is_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;

    use super::*;

    #[test]
    fn an_empty_namespace_means_all() {
        assert_eq!(Query::new().namespace("").wanted_namespace(), None);
        assert_eq!(Query::new().namespace("a").namespace("").wanted_namespace(), None);
    }

    #[test]
    fn selectors_match_as_in_kube() {
        let expressions = [
            Expression::In("a".into(), ["1".into(), "2".into()].into()),
            Expression::NotIn("a".into(), ["1".into()].into()),
            Expression::Equal("a".into(), "1".into()),
            Expression::NotEqual("a".into(), "1".into()),
            Expression::Exists("a".into()),
            Expression::DoesNotExist("a".into()),
        ];
        for labels in [&[][..], &[("a", "1")], &[("a", "3"), ("b", "1")], &[("b", "1")]] {
            let map: BTreeMap<String, String> = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            for expression in &expressions {
                let ours = holds(expression, |key| {
                    map.get(key).map(|value| Cow::Borrowed(value.as_str()))
                });
                assert_eq!(ours, expression.matches(&map), "{expression} {map:?}");
            }
        }
    }
}
