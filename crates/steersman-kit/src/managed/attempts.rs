// SPDX-License-Identifier: Apache-2.0
//! Failures and cleanups of parents, from one reconcile to the next.

use std::{collections::HashMap, sync::Arc};

use steersman_cluster::{ClusterName, EventType, ObjectExt};
use steersman_core::{Mutex, error_chain};
use steersman_runtime::{BoxError, Context, KnownKind, Request, terminal};

/// Failed attempts and done cleanups of parents. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// Maximum number of attempts for one generation.
    limit: Option<u32>,
    parents: Arc<Mutex<HashMap<Request, Parent>>>,
}

#[derive(Debug, Default)]
struct Parent {
    uid: Option<String>,
    generation: Option<i64>,
    failures: u32,
    is_cleaned: bool,
}

impl Attempts {
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = Some(limit.max(1));
    }

    pub(super) fn forget(&self, parent: &Request) {
        self.parents.lock().remove(parent);
    }

    pub(super) fn forget_cluster(&self, cluster: &ClusterName) {
        self.parents
            .lock()
            .retain(|parent, _| parent.cluster() != cluster);
    }

    /// Returns true if a failure of the next attempt is not retried.
    pub(super) fn is_last(&self, object: &impl KnownKind, cx: &Context) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        let parents = self.parents.lock();
        let found = parents.get(&request_of(object, cx));
        let same =
            found.filter(|parent| parent.is_of(object) && parent.generation == object.meta().generation);
        same.map_or(0, |parent| parent.failures) + 1 >= limit
    }

    /// Counts a failure, and makes the error terminal if the budget is used up.
    pub(super) fn judge<T>(
        &self,
        object: &impl KnownKind,
        cx: &Context,
        result: Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let Some(limit) = self.limit else {
            return result;
        };
        let parent = request_of(object, cx);
        let error = match result {
            Ok(value) => {
                self.parents.lock().remove(&parent);
                return Ok(value);
            }
            Err(error) => error,
        };
        let mut parents = self.parents.lock();
        let found = parents.entry(parent).or_default();
        if !found.is_of(object) || found.generation != object.meta().generation {
            *found = Parent::of(object);
        }
        found.failures = found.failures.saturating_add(1);
        let failures = found.failures;
        drop(parents);
        if failures < limit {
            return Err(error);
        }
        if failures == limit {
            let note = format!("not retried after {limit} attempts: {}", error_chain(&*error));
            cx.recorder()
                .event(object, EventType::Warning, "RetriesExhausted", "Reconcile", &note);
        }
        Err(terminal(error).into())
    }

    /// Returns true if the cleanup of this object is done.
    pub(super) fn is_cleaned(&self, object: &impl KnownKind, cx: &Context) -> bool {
        let parents = self.parents.lock();
        let found = parents.get(&request_of(object, cx));
        found.is_some_and(|parent| parent.is_cleaned && parent.is_of(object))
    }

    /// Notes that the cleanup of this object is done.
    pub(super) fn set_cleaned(&self, object: &impl KnownKind, cx: &Context) {
        let cleaned = Parent {
            is_cleaned: true,
            ..Parent::of(object)
        };
        self.parents.lock().insert(request_of(object, cx), cleaned);
    }
}

impl Parent {
    fn of(object: &impl KnownKind) -> Self {
        Self {
            uid: object.meta().uid.clone(),
            generation: object.meta().generation,
            failures: 0,
            is_cleaned: false,
        }
    }

    fn is_of(&self, object: &impl KnownKind) -> bool {
        self.uid == object.meta().uid
    }
}

fn request_of(object: &impl KnownKind, cx: &Context) -> Request {
    Request::new(cx.cluster().name().clone(), object.key())
}
