// SPDX-License-Identifier: Apache-2.0
//! A queue of keys that never hands out a key to two workers at once.
//!
//! Sources add keys. Workers take them with [`Queue::next`], work on the [`Item`] and finish it with an [`Outcome`].
//! The queue does not depend on Kubernetes and runs no task: the callers that wait for a key also wait for delays to
//! end.
//!
//! # Guarantees
//! 1. A key is never with two workers at once.
//! 2. A key that is added while in flight is handed out once more after that, however often it was added. It keeps the
//!    place in the order that it got when it was added.
//! 3. Adding a key that already waits leaves it in its place, except that the higher priority wins (the key moves to
//!    the end of it) and the earlier deadline wins (without delay it is ready now).
//! 4. Within a priority and group, keys are handed out in the order in which they became ready.
//! 5. Higher priorities are served first. A priority in which keys wait is skipped at most [`Options::starvation_limit`] times
//!    in succession, plus once for each other priority in use.
//! 6. Within a priority, outer groups take turns, and within an outer group its inner groups: between two takes from
//!    one group, every other group in which a key was ready all the time gets one.
//! 7. No key is handed out before its delay is over.
//! 8. Only an outcome consumes back-off ([`Outcome::retry`], [`Outcome::requeue`], a dropped item); an add does not.
//!    [`Outcome::done`], [`Outcome::requeue_after`] and [`Queue::forget`] reset it. [`Outcome::postpone`] and
//!    [`Item::withdraw`] do not change it.
//! 9. An [`Item`] that is dropped without an outcome requeues its key, rate-limited.
//! 10. A paused queue hands out nothing and loses nothing. Keys that wait for it to be resumed are counted separately
//!     from keys that a worker can take now, and their time in the queue starts when it is resumed.
//! 11. After shutdown an add changes nothing and returns [`Added::Refused`]. [`Queue::drain`] returns every unfinished
//!     key once, so that it can be carried into a later run.
//! 12. No wake-up is lost: while a key can be taken and a task waits in [`Queue::next`], a waiting task has been woken,
//!     even if the future that was woken first is dropped.
//! 13. A purged key is not handed out again unless it is added again, even if it was in flight.
//! 14. [`Queue::retract`] removes a key only while the queue is paused, and only if all its adds allow it.
//!
//! # Not promised
//! The queue orders only the handing out of keys, not the work on keys of different groups or priorities. It does not
//! define which of several waiting workers gets a key. When very many delays end at the same time, their keys become
//! ready in the order of their deadlines, but some at a time, so that a key added at that moment can be handed out
//! before some of them.
//!
//! # Shutdown
//! [`Queue::shut_down`] rejects further adds and sets whether ready keys are still handed out. [`Queue::drain`] waits
//! for the end with a deadline and returns the remaining keys.
//!
//! # Cancel safety
//! All futures can be dropped at any time.
//!
//! # Limits
//! Fewer than 2³² keys at once. An operation costs the same for one key and for a million, with two exceptions:
//! operations with a delay cost the logarithm of the number of delayed keys, and [`Queue::purge`], [`Queue::statuses`]
//! and [`Queue::drain`] walk all keys. Use few priorities: the first use of a priority costs the number of priorities
//! in use. `Eq`, `Hash`, `Clone` and `Drop` of a key must not panic or call the queue. A key is cloned each time it is
//! handed out, so it should be cheap to clone. Error texts are cut after 1 KiB.
//!
//! # Example
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steersman_core::TestClock;
//! use steersman_queue::{Options, Outcome, Queue, Shutdown};
//!
//! # futures::executor::block_on(async {
//! let queue = Queue::new(Arc::new(TestClock::new()), Options::new().named("web"));
//! queue.add("web-1");
//! queue.add("web-2");
//! queue.add("web-1"); // waits already
//! queue.shut_down(Shutdown::Finish);
//!
//! let mut seen = Vec::new();
//! while let Some(item) = queue.next().await {
//!     seen.push(*item.key());
//!     item.finish(Outcome::done());
//! }
//! assert_eq!(seen, ["web-1", "web-2"]);
//! # });
//! ```

mod entry;
mod group;
mod inspect;
mod item;
mod limiter;
mod list;
mod metrics;
mod next;
mod options;
mod outcome;
mod queue;
mod schedule;
mod shutdown;
mod state;
mod sync;
mod timers;
mod waiters;

use std::hash::Hash;

pub use group::{Group, Grouping};
pub use inspect::{Cause, Depth, Stage, Status};
pub use item::Item;
pub use limiter::{Backoff, RateLimiter};
pub use metrics::Metrics;
pub use next::Next;
pub use options::{Add, Options};
pub use outcome::{Finished, Outcome};
pub use queue::Queue;
pub use shutdown::{Drain, Shutdown};
pub use state::Added;

/// Requirements for a key. Implemented for every type that meets them.
pub trait Key: Clone + Eq + Hash + Send + 'static {}

impl<K: Clone + Eq + Hash + Send + 'static> Key for K {}

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
