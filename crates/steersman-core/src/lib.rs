// SPDX-License-Identifier: Apache-2.0
//! Basic types that all crates of Steersman share. It does not depend on Kubernetes, HTTP or a runtime.
//!
//! Time and randomness are dependencies: code that needs them receives a [`Clock`] and a [`Random`], so that a test
//! controls both.
//!
//! # Features
//! - `tokio` (off by default): `TokioClock`, the production clock, and `Spawner`, which starts tasks.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod action;
mod clock;
mod error_chain;
mod key;
mod panic_message;
mod permission;
mod presence;
mod random;
#[cfg(feature = "tokio")]
mod spawner;
mod sync;

pub use action::{Action, Next};
#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Clock, MonotonicTime, Sleep, SuspendAwareTime, TestClock};
pub use error_chain::error_chain;
pub use key::{InvalidKey, ObjectKey};
pub use panic_message::panic_message;
pub use permission::{Permission, PermissionPlace};
pub use presence::{Presence, PresenceStatus};
pub use random::Random;
#[cfg(feature = "tokio")]
pub use spawner::{Spawner, Task};
pub use sync::{Mutex, RwLock};
