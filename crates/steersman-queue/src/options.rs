// SPDX-License-Identifier: Apache-2.0
//! How a queue is made.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::group::Grouping;
use crate::limiter::{Backoff, Limiter};
use crate::metrics::Metrics;

/// What a queue is like.
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
///     .limiter(Backoff::new().seed(42))
///     .grouping(|request: &Request| Group::new(request.cluster).inner(request.namespace));
/// let queue = Queue::new(Arc::new(TestClock::new()), options);
/// assert_eq!(queue.name(), "web");
/// ```
pub struct Options<K> {
    pub(crate) name: Arc<str>,
    pub(crate) paused: bool,
    pub(crate) patience: NonZeroU32,
    pub(crate) limiter: Arc<dyn Limiter<K>>,
    pub(crate) grouping: Option<Arc<dyn Grouping<K>>>,
    pub(crate) metrics: Option<Arc<dyn Metrics>>,
}

impl<K> Options<K> {
    const PATIENCE: NonZeroU32 = NonZeroU32::new(16).expect("16 is not zero");

    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            name: Arc::from(""),
            paused: false,
            patience: Self::PATIENCE,
            limiter: Arc::new(Backoff::new()),
            grouping: None,
            metrics: None,
        }
    }

    /// What the queue is called in metrics and logs. Default: nothing.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: Arc::from(name),
            ..self
        }
    }

    /// Starts the queue paused: it takes keys in and hands none out until it is resumed. Default: running.
    #[must_use]
    pub fn paused(self) -> Self {
        Self { paused: true, ..self }
    }

    /// How many takes in succession may pass over a priority in which keys wait before it gets one. Default: 16, so
    /// that lower priorities get a seventeenth of the takes while higher ones are busy. With 1 they get half.
    #[must_use]
    pub fn patience(self, takes: NonZeroU32) -> Self {
        Self {
            patience: takes,
            ..self
        }
    }

    /// How long keys that failed have to wait. Default: [`Backoff`].
    #[must_use]
    pub fn limiter(self, limiter: impl Limiter<K>) -> Self {
        Self {
            limiter: Arc::new(limiter),
            ..self
        }
    }

    /// Which keys form groups that are served in turn. Default: all are in one group.
    #[must_use]
    pub fn grouping(self, grouping: impl Grouping<K>) -> Self {
        Self {
            grouping: Some(Arc::new(grouping)),
            ..self
        }
    }

    /// Who is told what happens. Default: nobody, which costs nothing.
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
            patience,
            ..
        } = self;
        f.debug_struct("Options")
            .field("name", name)
            .field("paused", paused)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// How a key is added.
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
#[must_use = "it says something only to `Queue::add_with`"]
pub struct Add {
    pub(crate) priority: i32,
    pub(crate) after: Duration,
    pub(crate) retractable: bool,
}

impl Add {
    /// At once, with priority 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Higher ones go first. Default: 0. Priorities are meant to be few.
    pub fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// How long the key has to wait at most before it is ready. Default: not at all.
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Allows [`Queue::retract`](crate::Queue::retract) to take the key out again, as long as every add of the key allows
    /// it. Default: not allowed.
    pub fn retractable(self) -> Self {
        Self {
            retractable: true,
            ..self
        }
    }
}
