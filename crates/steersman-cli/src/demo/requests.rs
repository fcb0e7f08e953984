// SPDX-License-Identifier: Apache-2.0
//! Counts the lists and watches that replicas ask the API server for, to show which there are not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Uri;
use steersman_apiserver::Exchange;

use super::step::{StepError, ensure};

/// What the demo's own eyes call themselves, so that their requests are not counted.
pub(crate) const USER_AGENT: &str = "steersman-demo";

/// The kinds of which the operator's first controller has a cache.
const CACHED: [&str; 3] = ["webs", "configmaps", "deployments"];

/// Each list and watch of such a kind, in order. Clones note them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    /// Takes note of a request.
    pub(crate) fn note(&self, exchange: &Exchange<'_>) {
        if exchange.method == "GET" {
            self.note_read(exchange.uri, exchange.user_agent);
        }
    }

    fn note_read(&self, uri: &Uri, user_agent: &str) {
        let collection = uri.path().rsplit('/').next().unwrap_or_default();
        if CACHED.contains(&collection) && !user_agent.starts_with(USER_AGENT) {
            self.lock().push(uri.to_string());
        }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Fails if there were more than so many.
    pub(crate) fn ensure_only(&self, count: usize) -> Result<(), StepError> {
        let all = self.lock();
        let more = all.get(count..).unwrap_or_default().join(", ");
        ensure(
            more.is_empty(),
            format_args!("replicas list or watch anew: {more}"),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_that_replicas_read_are_counted() {
        let requests = Requests::default();
        let webs = Uri::from_static("/apis/examples.steersman.dev/v1/webs");
        let web = Uri::from_static("/apis/examples.steersman.dev/v1/namespaces/default/webs/front");
        requests.note_read(&webs, "steersman/0.1");
        requests.note_read(&web, "steersman/0.1");
        requests.note_read(&webs, USER_AGENT);
        assert_eq!(requests.count(), 1);
        requests.ensure_only(1).unwrap();
        let more = requests.ensure_only(0).unwrap_err().to_string();
        assert!(more.ends_with("/v1/webs"), "{more}");
    }
}
