// SPDX-License-Identifier: Apache-2.0
//! A queue of keys in which no key is worked on twice at once.
//!
//! Sits between sources, which add keys, and workers, which take them with [`Queue::next`], work on the [`Item`]
//! and finish it with an [`Outcome`]. It knows nothing of Kubernetes and runs no task: whoever waits for a key also
//! waits for delays to end.
//!
//! # Guarantees
//! 1. A key is never with two workers at once.
//! 2. A key that is added while in flight is handed out once more after that, however often it was added. It keeps
//!    the place in the order that it got when it was added.
//! 3. Adding a key that already waits leaves it where it is, except that the higher priority wins (the key goes to
//!    the end of it) and the earlier deadline wins (without delay it is ready now).
//! 4. Within a priority and group, keys are handed out in the order in which they became ready.
//! 5. Higher priorities go first. A priority in which keys wait is passed over at most [`Options::patience`] times
//!    in succession, plus once for each other priority in use.
//! 6. Within a priority, outer groups take turns, and within an outer group its inner groups: between two takes
//!    from one group, every other group in which a key was ready all the time gets one.
//! 7. No key is handed out before its delay is over.
//! 8. Only an outcome consumes back-off ([`Outcome::retry`], [`Outcome::requeue`], a dropped item); an add does
//!    not. [`Outcome::done`], [`Outcome::requeue_after`] and [`Queue::forget`] reset it. [`Outcome::postpone`] and
//!    [`Item::withdraw`] leave it as it is.
//! 9. An [`Item`] that is dropped without an outcome puts its key back, rate-limited.
//! 10. A paused queue hands out nothing and loses nothing. What waits for it to be resumed is counted apart from
//!     what may be worked on now, and the time in the queue starts when it is resumed.
//! 11. After shutdown an add changes nothing and says so. Every key that was not worked off is answered by
//!     [`Queue::drain`], once, and can be carried into a later run.
//! 12. No wake-up is lost: while a key may be taken and somebody waits in [`Queue::next`], somebody has been woken,
//!     also if the future that was woken first is dropped.
//! 13. A purged key is not handed out again unless it is added again, even if it was in flight.
//! 14. [`Queue::retract`] removes a key only while the queue is paused, and only if all its adds allow it.
//!
//! # Not promised
//! That keys of different groups or priorities are *worked on* in a certain order: only the handing out is ordered.
//! Which of several waiting workers gets a key. When very many delays end at the same time, their keys become ready
//! in the order of their deadlines, but some at a time, so that a key added just then may go before some of them.
//!
//! # Shutdown
//! [`Queue::shut_down`] stops the intake and says whether ready keys are still handed out; [`Queue::drain`] waits for
//! the end with a deadline and answers what is left.
//!
//! # Cancel safety
//! All futures may be dropped at any time.
//!
//! # Limits
//! Fewer than 2³² keys at once. An operation costs the same for one key and for a million, except those with a
//! delay, which cost the logarithm of the number of delayed keys, and those that walk all keys
//! ([`Queue::purge`], [`Queue::statuses`], [`Queue::drain`]). Priorities are meant to be few: a priority that
//! comes into use costs the number of those in use. `Eq`, `Hash`, `Clone` and `Drop` of a key must not panic or call
//! the queue; a key is cloned once for each time it is handed out, so it should be cheap to clone. Error texts are cut
//! after 1 KiB.
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
pub use limiter::{Backoff, Limiter};
pub use metrics::Metrics;
pub use next::Next;
pub use options::{Add, Options};
pub use outcome::{Finished, Outcome};
pub use queue::Queue;
pub use shutdown::{Drain, Shutdown};
pub use state::Added;

/// What the queue needs of a key. Everything that can be one is one.
pub trait Key: Clone + Eq + Hash + Send + 'static {}

impl<K: Clone + Eq + Hash + Send + 'static> Key for K {}
