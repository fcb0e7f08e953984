// SPDX-License-Identifier: Apache-2.0
//! Counts the lists and watches that replicas ask the API server for, to show which there are not.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use steersman_apiserver::Exchange;

/// What the demo's own eyes call themselves, so that their requests are not counted.
pub(crate) const USER_AGENT: &str = "steersman-demo";

/// The kinds of which the operator's first controller has a cache.
const CACHED: [&str; 3] = ["webs", "configmaps", "deployments"];

/// How often each collection was listed or watched. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Requests {
    /// Takes note of a request.
    pub(crate) fn note(&self, exchange: &Exchange<'_>) {
        if exchange.method == "GET" {
            self.note_read(exchange.uri.path(), exchange.user_agent);
        }
    }

    fn note_read(&self, path: &str, user_agent: &str) {
        let collection = path.rsplit('/').next().unwrap_or_default();
        let known = CACHED.into_iter().find(|plural| *plural == collection);
        if let Some(plural) = known.filter(|_| !user_agent.starts_with(USER_AGENT)) {
            *self.lock().entry(plural).or_default() += 1;
        }
    }

    /// How many lists and watches there were of all these kinds.
    pub(crate) fn reads(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_that_replicas_read_are_counted() {
        let requests = Requests::default();
        let webs = "/apis/examples.steersman.dev/v1/webs";
        requests.note_read(webs, "steersman/0.1");
        requests.note_read(&format!("{webs}/front"), "steersman/0.1");
        requests.note_read(webs, USER_AGENT);
        assert_eq!(requests.reads(), 1);
    }
}
