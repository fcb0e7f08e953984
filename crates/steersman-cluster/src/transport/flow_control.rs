// SPDX-License-Identifier: Apache-2.0
//! Counts requests that API priority and fairness rejected.

use http::{HeaderMap, header};
use steersman_core::Mutex;

const FLOW_SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";
const PRIORITY_LEVEL: &str = "x-kubernetes-pf-prioritylevel-uid";

/// Maximum number of counters. A cluster has a few dozen flow schemas.
const DIFFERENT: usize = 256;

/// Number of requests that API priority and fairness of the server rejected (429), for one flow schema.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowControlCount {
    /// UID of the FlowSchema that the requests belong to.
    pub flow_schema_uid: String,
    /// UID of its PriorityLevelConfiguration, whose seats or queues are too few.
    pub priority_level_uid: String,
    /// Number of rejected requests.
    pub count: u64,
}

#[derive(Debug, Default)]
pub(crate) struct FlowControl(Mutex<Vec<FlowControlCount>>);

impl FlowControl {
    /// Counts an answer with the code 429, if it is from API priority and fairness. All answers of the server have these
    /// headers, but only its filter answers with plain text; an eviction that is rejected has a `Status`.
    pub(super) fn note(&self, headers: &HeaderMap) {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &http::HeaderValue| value.to_str().ok())
        };
        let (Some(schema), Some(level)) = (text(FLOW_SCHEMA), text(PRIORITY_LEVEL)) else {
            return;
        };
        if text(header::CONTENT_TYPE.as_str()).is_none_or(|kind| !kind.starts_with("text/plain")) {
            return;
        }
        let mut counts = self.0.lock();
        let has_room = counts.len() < DIFFERENT;
        let known = counts
            .iter_mut()
            .find(|one| one.flow_schema_uid == schema && one.priority_level_uid == level);
        match known {
            Some(one) => one.count += 1,
            None if has_room => counts.push(FlowControlCount {
                flow_schema_uid: schema.to_owned(),
                priority_level_uid: level.to_owned(),
                count: 1,
            }),
            None => {}
        }
    }

    pub(crate) fn counts(&self) -> Vec<FlowControlCount> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect()
    }

    // C3
    #[test]
    fn counts_rejections_by_flow_schema() {
        let rejected = headers(&[
            (FLOW_SCHEMA, "schema"),
            (PRIORITY_LEVEL, "level"),
            ("content-type", "text/plain; charset=utf-8"),
        ]);
        let eviction = headers(&[
            (FLOW_SCHEMA, "schema"),
            (PRIORITY_LEVEL, "level"),
            ("content-type", "application/json"),
        ]);
        let flow_control = FlowControl::default();
        for headers in [&rejected, &rejected, &eviction, &HeaderMap::new()] {
            flow_control.note(headers);
        }
        let counts = flow_control.counts();
        assert_eq!(counts.len(), 1);
        assert_eq!(
            (
                &*counts[0].flow_schema_uid,
                &*counts[0].priority_level_uid,
                counts[0].count
            ),
            ("schema", "level", 2)
        );
    }
}
