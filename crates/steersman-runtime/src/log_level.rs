// SPDX-License-Identifier: Apache-2.0
//! Log filter from a ConfigMap.
//!
//! # Guarantees
//! 1. When the entry changes, the log filter changes without a restart, in every replica, leader or standby. Other changes
//!    of the ConfigMap have no effect.
//! 2. An invalid entry changes nothing, and is logged once.
//! 3. Without the entry, the original filter applies.
//! 4. Only one object is watched. If that is forbidden or the server is unreachable, the process continues unchanged.

use std::fmt;

use steersman_cluster::{Cluster, ClusterName};
use steersman_core::ObjectKey;

use crate::{BoxError, LogHandle, RunContext, RunPolicy, Runnable, one_map};

/// Default name of the entry.
const ENTRY: &str = "log-filter";

/// Sets the log filter from an entry of a ConfigMap: `info`, or `info,steersman=debug`. An operator with more settings uses
/// [`LiveConfig`](crate::LiveConfig), of which the log filter can be a part.
///
/// ```no_run
/// use steersman_core::ObjectKey;
/// use steersman_runtime::{LogLevel, Logging, Manager};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let logs = Logging::from_env().install()?;
/// let manager = Manager::builder().build().await?;
/// let settings = ObjectKey::new("web-system", "web-operator");
/// manager.add(LogLevel::new(logs, manager.cluster()?, settings))?;
/// // kubectl -n web-system create configmap web-operator --from-literal=log-filter=debug
/// # Ok(())
/// # }
/// ```
pub struct LogLevel {
    logs: LogHandle,
    cluster: Cluster,
    map: ObjectKey,
    entry: String,
}

impl LogLevel {
    /// Uses the entry `log-filter` of this ConfigMap.
    #[must_use]
    pub fn new(logs: LogHandle, cluster: Cluster, map: ObjectKey) -> Self {
        Self {
            logs,
            cluster,
            map,
            entry: ENTRY.to_owned(),
        }
    }

    /// Uses another entry.
    #[must_use]
    pub fn entry(mut self, name: impl Into<String>) -> Self {
        self.entry = name.into();
        self
    }

    fn apply(&self, wanted: Option<&str>, original: &str) {
        let (filter, before) = (wanted.unwrap_or(original), self.logs.filter());
        match self.logs.set_filter(filter) {
            // Compared as the log shows them, since one filter can be written in several ways.
            Ok(()) if self.logs.filter() == before => {}
            Ok(()) => tracing::info!(filter, map = %self.map, "log filter changed"),
            Err(error) => tracing::warn!(
                map = %self.map,
                entry = self.entry,
                error = &error as &dyn std::error::Error,
                "invalid log filter; keeping the current one"
            ),
        }
    }
}

impl Runnable for LogLevel {
    fn name(&self) -> &str {
        "log-level"
    }

    fn run_policy(&self) -> RunPolicy {
        RunPolicy::AllReplicas
    }

    fn clusters(&self) -> Vec<ClusterName> {
        vec![self.cluster.name().clone()]
    }

    async fn run(&self, cx: RunContext) -> Result<(), BoxError> {
        let original = self.logs.filter();
        let mut entry = None;
        // The log filter does not affect readiness.
        cx.ready();
        one_map::follow(&self.cluster, &self.map, self.name(), &cx, |object| {
            let wanted = object.and_then(|object| one_map::entry_of(&object, &self.entry));
            if wanted != entry {
                self.apply(wanted.as_deref(), &original);
                entry = wanted;
            }
        })
        .await;
        Ok(())
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel")
            .field("map", &self.map)
            .field("entry", &self.entry)
            .finish_non_exhaustive()
    }
}
