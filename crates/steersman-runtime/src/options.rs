// SPDX-License-Identifier: Apache-2.0
//! How a controller works.

use std::time::Duration;

use crate::RunPolicy;

/// How a controller works, or all controllers of a host that say nothing else. What is not set has its default.
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
    /// Defaults only.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many keys are worked on at once. No key is ever worked on twice at once. Default: 1; at least 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers.max(1));
        self
    }

    /// After this time a source that is not in sync is called in trouble. Default: 2 min.
    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.sync_timeout = Some(limit);
        self
    }

    /// A reconcile that takes longer is cancelled and tried again after its back-off; with several
    /// [`Handlers`](crate::Handlers), a call of one of them. Default: none.
    pub fn reconcile_timeout(mut self, limit: Duration) -> Self {
        self.reconcile_timeout = Some(limit);
        self
    }

    /// Log a warning with the key when a reconcile takes longer than this. The reconcile is not cancelled. Default: 1 min;
    /// zero turns the warning off. `steersman_reconciles_long_running` counts such reconciles.
    pub fn reconcile_warn_after(mut self, limit: Duration) -> Self {
        self.reconcile_warn_after = Some(limit);
        self
    }

    /// Reconciles per minute of one key that change an object, above which the key is slowed down to this rate. A warning
    /// names the key and the objects that the controller changes; `reconcile_hot_loop_total` counts the delays. Default: 60;
    /// zero turns it off. Writes of the raw client do not count.
    pub fn hot_loop_limit(mut self, per_minute: u32) -> Self {
        self.hot_loop_limit = Some(per_minute);
        self
    }

    /// When it works: in every replica, while this one leads (the default), or while it leads but with its caches and
    /// queue filled before.
    pub fn run_policy(mut self, needs: RunPolicy) -> Self {
        self.needs = Some(needs);
        self
    }

    /// Ends the run when a source is in trouble before the controller has begun to work, instead of waiting for it to
    /// become better. A source that is in trouble later, also in a later term of leadership, is waited for in either case, and
    /// so is one that follows every cluster. Default: no.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// Whether a reconcile that panics is counted, reported and tried again (the default), or ends the run.
    pub fn recover_panics(mut self, recover: bool) -> Self {
        self.recover_panics = Some(recover);
        self
    }

    /// Whether keys that are ready when the controller is stopped are still worked on, as far as the grace period goes.
    /// Default: no, they wait in the queue for the next run.
    pub fn drain(mut self, drain: bool) -> Self {
        self.drain = Some(drain);
        self
    }

    /// How often the cluster is asked which kinds it has, where it cannot be watched for that. Of all controllers of a
    /// cluster the shortest counts, and none is shorter than 50 ms. Default: 10 s.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = Some(interval);
        self
    }

    /// Field manager of the writes of the controller. Default: the name of the controller. Choose one that does not change: fields
    /// that were applied under another name stay as they are.
    pub fn field_manager(mut self, name: impl Into<String>) -> Self {
        self.field_manager = Some(name.into());
        self
    }

    /// What is not set here is taken from there.
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

    /// After which time a warning is logged, if one is.
    pub(crate) fn warn_limit(&self) -> Option<Duration> {
        let limit = self.reconcile_warn_after.unwrap_or(Duration::from_secs(60));
        (!limit.is_zero()).then_some(limit)
    }

    pub(crate) fn hot_loop_rate(&self) -> u32 {
        self.hot_loop_limit.unwrap_or(60)
    }

    pub(crate) fn needed(&self) -> RunPolicy {
        self.needs.unwrap_or(RunPolicy::Leadership)
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
    fn what_a_controller_says_goes_before_what_its_host_says() {
        let host = Options::new().workers(4).strict(true);
        let own = Options::new().workers(2).or(&host);
        assert_eq!(own.worker_count(), 2);
        assert!(own.is_strict());
        assert_eq!(Options::new().worker_count(), 1);
        assert_eq!(Options::new().sync_limit(), Duration::from_secs(120));
        assert_eq!(Options::new().needed(), RunPolicy::Leadership);
        assert!(Options::new().recovers_panics());
    }
}
