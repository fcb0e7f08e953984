// SPDX-License-Identifier: Apache-2.0
//! The requests that a fault matches.

use super::record::Exchange;

/// Selects the requests for a fault. All conditions must hold.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Matching {
    method: Option<String>,
    path: Option<String>,
    query: Option<String>,
    identity: Option<String>,
    watch: Option<bool>,
    pub(super) skip: usize,
    pub(super) take: Option<usize>,
}

impl Matching {
    /// Matches every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches requests with this HTTP method.
    pub fn method(method: impl Into<String>) -> Self {
        Self {
            method: Some(method.into()),
            ..Self::default()
        }
    }

    /// Matches watches.
    pub fn watches() -> Self {
        Self {
            watch: Some(true),
            ..Self::default()
        }
    }

    /// Matches reads that are not watches: gets and lists.
    pub fn reads() -> Self {
        Self {
            method: Some("GET".to_owned()),
            watch: Some(false),
            ..Self::default()
        }
    }

    /// Requires that the path contains `part`.
    pub fn path(mut self, part: impl Into<String>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// Requires that the query contains `part`.
    pub fn query(mut self, part: impl Into<String>) -> Self {
        self.query = Some(part.into());
        self
    }

    /// Requires the identity with this name, which must have been announced.
    pub fn identity(mut self, name: impl Into<String>) -> Self {
        self.identity = Some(name.into());
        self
    }

    /// Limits the fault to the first `count` matching requests.
    pub fn first(mut self, count: usize) -> Self {
        self.take = Some(count);
        self
    }

    /// Skips the first `count` matching requests.
    pub fn after(mut self, count: usize) -> Self {
        self.skip = count;
        self
    }

    pub(super) fn matches(&self, exchange: &Exchange) -> bool {
        let within =
            |part: &Option<String>, whole: &str| part.as_deref().is_none_or(|part| whole.contains(part));
        self.method
            .as_deref()
            .is_none_or(|method| method.eq_ignore_ascii_case(&exchange.method))
            && within(&self.path, &exchange.path)
            && within(&self.query, &exchange.query)
            && self.watch.is_none_or(|watch| watch == exchange.is_watch())
            && (self.identity.is_none() || self.identity == exchange.identity)
    }
}
