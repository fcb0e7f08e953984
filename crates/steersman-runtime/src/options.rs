// SPDX-License-Identifier: Apache-2.0
//! Options of controllers.

use std::time::Duration;

use crate::RunPolicy;

/// Options of a controller, or the defaults for all controllers of a manager. Each unset option has its default.
///
/// ```
/// use std::time::Duration;
/// use steersman_runtime::Options;
///
/// let patient = Options::new().workers(4).sync_timeout(Duration::from_secs(600));
/// # let _ = patient;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    workers: Option<usize>,
    sync_timeout: Option<Duration>,
    reconcile_timeout: Option<Duration>,
    reconcile_warn_after: Option<Duration>,
    hot_loop_limit: Option<u32>,
    needs: Option<RunPolicy>,
    strict: Option<bool>,
    recover_panics: Option<bool>,
    drain: Option<bool>,
    poll_every: Option<Duration>,
    field_manager: Option<String>,
}

impl Options {
    /// Creates options with all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys that are reconciled at the same time. A key is never reconciled twice at the same time. Default: 1;
    /// at least 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers.max(1));
        self
    }

    /// Time until a source that is not in sync is reported as failing. Default: 2 min.
    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.sync_timeout = Some(limit);
        self
    }

    /// Timeout of a reconcile. On timeout the reconcile is cancelled and retried after its back-off. Default: none.
    pub fn reconcile_timeout(mut self, limit: Duration) -> Self {
        self.reconcile_timeout = Some(limit);
        self
    }

    /// Logs a warning with the key when a reconcile takes longer than this. The reconcile is not cancelled. Default: 1 min;
    /// zero turns the warning off. `steersman_reconciles_long_running` counts such reconciles.
    pub fn reconcile_warn_after(mut self, limit: Duration) -> Self {
        self.reconcile_warn_after = Some(limit);
        self
    }

    /// Limits the reconciles per minute of one key that change an object; above the limit, the key is slowed down to this
    /// rate. A warning names the key and the objects that the controller changes; `reconcile_hot_loop_total` counts the
    /// delays. Default: 60; zero turns it off. Writes of the raw client do not count.
    pub fn hot_loop_limit(mut self, per_minute: u32) -> Self {
        self.hot_loop_limit = Some(per_minute);
        self
    }

    /// Selects when the controller works: in every replica, only on the leader (the default), or only on the leader with
    /// caches and queue filled on standbys.
    pub fn run_policy(mut self, needs: RunPolicy) -> Self {
        self.needs = Some(needs);
        self
    }

    /// Ends the run when a source fails before the first reconcile, instead of waiting for the source to recover. The
    /// controller always waits for a source that fails later, also in a later term of leadership, and for a source that
    /// follows every cluster. Default: no.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// Recovers from a panic of a reconcile: it is counted, logged and retried. If false, a panic ends the run. Default:
    /// yes.
    pub fn recover_panics(mut self, recover: bool) -> Self {
        self.recover_panics = Some(recover);
        self
    }

    /// On shutdown, works on keys that are ready, until the shutdown timeout. Default: no; they stay in the queue for the
    /// next run.
    pub fn drain(mut self, drain: bool) -> Self {
        self.drain = Some(drain);
        self
    }

    /// Interval of polling the cluster for installed kinds, if they cannot be watched. The shortest interval of all
    /// controllers of a cluster applies. Default: 10 s; at least 50 ms.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = Some(interval);
        self
    }

    /// Field manager of the writes of the controller. Default: the name of the controller. Choose one that does not change:
    /// fields that were applied under another name keep their old manager.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.field_manager = Some(name.into());
        self
    }

    /// Takes each unset option from `defaults`.
    pub fn or(self, defaults: &Self) -> Self {
        Self {
            workers: self.workers.or(defaults.workers),
            sync_timeout: self.sync_timeout.or(defaults.sync_timeout),
            reconcile_timeout: self.reconcile_timeout.or(defaults.reconcile_timeout),
            reconcile_warn_after: self.reconcile_warn_after.or(defaults.reconcile_warn_after),
            hot_loop_limit: self.hot_loop_limit.or(defaults.hot_loop_limit),
            needs: self.needs.or(defaults.needs),
            strict: self.strict.or(defaults.strict),
            recover_panics: self.recover_panics.or(defaults.recover_panics),
            drain: self.drain.or(defaults.drain),
            poll_every: self.poll_every.or(defaults.poll_every),
            field_manager: self.field_manager.or_else(|| defaults.field_manager.clone()),
        }
    }

    pub(crate) fn field_manager_of<'a>(&'a self, controller: &'a str) -> &'a str {
        self.field_manager.as_deref().unwrap_or(controller)
    }

    pub(crate) fn worker_count(&self) -> usize {
        self.workers.unwrap_or(1)
    }

    pub(crate) fn sync_limit(&self) -> Duration {
        self.sync_timeout.unwrap_or(Duration::from_secs(120))
    }

    pub(crate) fn reconcile_limit(&self) -> Option<Duration> {
        self.reconcile_timeout
    }

    /// Time after which a warning is logged; `None` turns it off.
    pub(crate) fn warn_limit(&self) -> Option<Duration> {
        let limit = self.reconcile_warn_after.unwrap_or(Duration::from_secs(60));
        (!limit.is_zero()).then_some(limit)
    }

    pub(crate) fn hot_loop_rate(&self) -> u32 {
        self.hot_loop_limit.unwrap_or(60)
    }

    pub(crate) fn needed(&self) -> RunPolicy {
        self.needs.unwrap_or(RunPolicy::LeaderElected)
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.strict.unwrap_or(false)
    }

    pub(crate) fn recovers_panics(&self) -> bool {
        self.recover_panics.unwrap_or(true)
    }

    pub(crate) fn polled_every(&self) -> Duration {
        self.poll_every.unwrap_or(steersman_cluster::POLL_EVERY)
    }

    pub(crate) fn drains(&self) -> bool {
        self.drain.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_controller_override_those_of_the_manager() {
        let host = Options::new().workers(4).strict(true);
        let own = Options::new().workers(2).or(&host);
        assert_eq!(own.worker_count(), 2);
        assert!(own.is_strict());
        assert_eq!(Options::new().worker_count(), 1);
        assert_eq!(Options::new().sync_limit(), Duration::from_secs(120));
        assert_eq!(Options::new().needed(), RunPolicy::LeaderElected);
        assert!(Options::new().recovers_panics());
    }
}
