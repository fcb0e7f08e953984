// SPDX-License-Identifier: Apache-2.0
//! Options of a queue and of an add.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::group::Grouping;
use crate::limiter::{Backoff, RateLimiter};
use crate::metrics::Metrics;

/// Options of a queue.
///
/// ```
/// use std::sync::Arc;
/// use steersman_core::TestClock;
/// use steersman_queue::{Backoff, Group, Options, Queue};
///
/// #[derive(Clone, PartialEq, Eq, Hash)]
/// struct Request { cluster: &'static str, namespace: &'static str, name: &'static str }
///
/// let options = Options::new()
///     .named("web")
///     .paused()
///     .rate_limiter(Backoff::new().seed(42))
///     .grouping(|request: &Request| Group::new(request.cluster).inner(request.namespace));
/// let queue = Queue::new(Arc::new(TestClock::new()), options);
/// assert_eq!(queue.name(), "web");
/// ```
pub struct Options<K> {
    pub(crate) name: Arc<str>,
    pub(crate) paused: bool,
    pub(crate) starvation_limit: NonZeroU32,
    pub(crate) limiter: Arc<dyn RateLimiter<K>>,
    pub(crate) grouping: Option<Arc<dyn Grouping<K>>>,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
}

impl<K> Options<K> {
    const PATIENCE: NonZeroU32 = NonZeroU32::new(16).expect("16 is not zero");

    /// Creates the default options.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: Arc::from(""),
            paused: false,
            starvation_limit: Self::PATIENCE,
            limiter: Arc::new(Backoff::new()),
            grouping: None,
            metrics: None,
        }
    }

    /// Sets the name of the queue in metrics and logs. Default: empty.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: Arc::from(name),
            ..self
        }
    }

    /// Starts the queue paused: it accepts keys and hands none out until it is resumed. Default: running.
    #[must_use]
    pub fn paused(self) -> Self {
        Self { paused: true, ..self }
    }

    /// Anti-starvation: after this many higher-priority keys, one lower-priority key is taken. Default: 16, so that lower
    /// priorities get a seventeenth of the keys while higher ones are busy. With 1 they get half.
    #[must_use]
    pub fn starvation_limit(self, takes: NonZeroU32) -> Self {
        Self {
            starvation_limit: takes,
            ..self
        }
    }

    /// Sets the rate limiter that computes the back-off of failed keys. Default: [`Backoff`].
    #[must_use]
    pub fn rate_limiter(self, limiter: impl RateLimiter<K>) -> Self {
        Self {
            limiter: Arc::new(limiter),
            ..self
        }
    }

    /// Sets the groups that are served in turn. Default: all keys are in one group.
    #[must_use]
    pub fn grouping(self, grouping: impl Grouping<K>) -> Self {
        Self {
            grouping: Some(Arc::new(grouping)),
            ..self
        }
    }

    /// Sets the receiver of metrics. Default: none, which costs nothing.
    #[must_use]
    pub fn metrics(self, metrics: Arc<dyn Metrics>) -> Self {
        Self {
            metrics: Some(metrics),
            ..self
        }
    }
}

impl<K> Default for Options<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for Options<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            paused,
            starvation_limit,
            ..
        } = self;
        f.debug_struct("Options")
            .field("name", name)
            .field("paused", paused)
            .field("patience", starvation_limit)
            .finish_non_exhaustive()
    }
}

/// Options of an add.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use steersman_core::TestClock;
/// use steersman_queue::{Add, Options, Queue};
///
/// let queue = Queue::new(Arc::new(TestClock::new()), Options::new());
/// queue.add_with("web-1", Add::new().priority(-100).after(Duration::from_secs(5)));
/// assert_eq!(queue.depth().delayed(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it has an effect only in `Queue::add_with`"]
pub struct Add {
    pub(crate) priority: i32,
    pub(crate) after: Duration,
    pub(crate) retractable: bool,
}

impl Add {
    /// Adds without delay, with priority 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the priority; higher ones are served first. Default: 0. Use few priorities.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets the maximum delay before the key is ready. Default: none.
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Allows [`Queue::retract`](crate::Queue::retract) to remove the key again, if every add of the key allows it.
    /// Default: not allowed.
    pub fn retractable(self) -> Self {
        Self {
            retractable: true,
            ..self
        }
    }
}
