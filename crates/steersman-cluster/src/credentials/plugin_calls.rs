// SPDX-License-Identifier: Apache-2.0
//! Counts calls of exec plugins.

use std::{collections::BTreeMap, sync::Arc};

use steersman_core::Mutex;

/// Number of calls of an exec plugin with the same outcome: `rest_client_exec_plugin_call_total` of client-go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PluginCallCount {
    /// The exit code; zero only if the call succeeded.
    pub code: i32,
    /// The outcome: `no_error`, `plugin_execution_error`, `plugin_not_found_error` or `client_internal_error`.
    pub call_status: &'static str,
    /// Number of calls.
    pub count: u64,
}

/// Counter of the calls of an exec plugin. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PluginCalls(Arc<Mutex<BTreeMap<(&'static str, i32), u64>>>);

impl PluginCalls {
    /// Counts a call.
    pub(crate) fn add(&self, call_status: &'static str, code: i32) {
        *self.0.lock().entry((call_status, code)).or_default() += 1;
    }

    pub(crate) fn all(&self) -> Vec<PluginCallCount> {
        let counts = self.0.lock();
        let count = |(&(call_status, code), &count): (&(&'static str, i32), &u64)| PluginCallCount {
            code,
            call_status,
            count,
        };
        counts.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // C4
    #[test]
    fn calls_are_counted_by_outcome() {
        let calls = PluginCalls::default();
        let shared = calls.clone();
        for (call_status, code) in [("no_error", 0), ("plugin_execution_error", 7), ("no_error", 0)] {
            shared.add(call_status, code);
        }
        let all: Vec<_> = calls
            .all()
            .iter()
            .map(|one| (one.call_status, one.code, one.count))
            .collect();
        assert_eq!(all, [("no_error", 0, 2), ("plugin_execution_error", 7, 1)]);
    }
}
