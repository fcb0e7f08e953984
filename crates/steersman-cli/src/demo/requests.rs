// SPDX-License-Identifier: Apache-2.0
//! Records the requests of replicas, to show which ones they do not send.

use std::sync::Arc;

use steersman_core::Mutex;

use http::Uri;
use steersman_apiserver::Exchange;

use super::step::{StepError, ensure};

/// User agent of the demo's own informers, so that their requests are not counted.
pub(crate) const USER_AGENT: &str = "steersman-demo";

/// Kinds that the operator's first controller has in its cache.
const CACHED: [&str; 3] = ["webs", "configmaps", "deployments"];

/// Clones share the recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// Each list and watch of such a kind, in order.
    reads: Vec<String>,
    /// Each write in order, with the name of the replica.
    writes: Vec<(String, String)>,
}

impl Requests {
    /// Records a request.
    pub(crate) fn note(&self, exchange: &Exchange<'_>) {
        if exchange.user_agent.starts_with(USER_AGENT) {
            return;
        }
        match exchange.method.as_str() {
            "GET" => self.note_read(exchange.uri),
            method => self.note_write(exchange.user_agent, method, exchange.uri),
        }
    }

    fn note_read(&self, uri: &Uri) {
        let collection = uri.path().rsplit('/').next().unwrap_or_default();
        if CACHED.contains(&collection) {
            self.0.lock().reads.push(uri.to_string());
        }
    }

    fn note_write(&self, replica: &str, method: &str, uri: &Uri) {
        let write = format!("{method} {}", uri.path());
        self.0.lock().writes.push((replica.to_owned(), write));
    }

    /// Returns the number of lists and watches.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().reads.len()
    }

    /// Returns the number of writes.
    pub(crate) fn writes(&self) -> usize {
        self.0.lock().writes.len()
    }

    /// Fails if a replica wrote any object before it wrote to a lease, counted from `writes`. Requests of the killed
    /// replica can still be on their way, and do not count.
    pub(crate) fn ensure_lease_first(&self, writes: usize, dead: &str) -> Result<(), StepError> {
        let noted = self.0.lock();
        let mut since = noted.writes.iter().skip(writes);
        let first = since.find(|(replica, _)| replica != dead);
        let first = first.map_or("nothing", |(_, write)| write);
        ensure(
            first.contains("/leases"),
            format_args!("the first write was not to the lease: {first}"),
        )
    }

    /// Fails if there were more than `count` lists and watches.
    pub(crate) fn ensure_only(&self, count: usize) -> Result<(), StepError> {
        let noted = self.0.lock();
        let more = noted.reads.get(count..).unwrap_or_default().join(", ");
        ensure(
            more.is_empty(),
            format_args!("replicas list or watch anew: {more}"),
        )
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
        requests.note_read(&webs);
        requests.note_read(&web);
        assert_eq!(requests.count(), 1);
        requests.ensure_only(1).unwrap();
        let more = requests.ensure_only(0).unwrap_err().to_string();
        assert!(more.ends_with("/v1/webs"), "{more}");
    }

    #[test]
    fn a_write_before_the_one_to_the_lease_is_told() {
        let requests = Requests::default();
        let map = Uri::from_static("/api/v1/namespaces/default/configmaps/a");
        let lease = Uri::from_static("/apis/coordination.k8s.io/v1/namespaces/default/leases/site");
        requests.note_write("one", "PATCH", &map);
        requests.note_write("two", "PUT", &lease);
        requests.ensure_lease_first(1, "one").unwrap();
        requests.ensure_lease_first(0, "one").unwrap();
        let error = requests.ensure_lease_first(0, "three").unwrap_err().to_string();
        assert!(
            error.contains("PATCH /api/v1/namespaces/default/configmaps/a"),
            "{error}"
        );
        requests.ensure_lease_first(2, "one").unwrap_err();
    }
}
