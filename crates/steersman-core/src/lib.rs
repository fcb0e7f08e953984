// SPDX-License-Identifier: Apache-2.0
//! The words that all crates of Steersman share. It knows neither Kubernetes nor HTTP nor a runtime.
//!
//! Time and chance come from outside: whoever needs them is handed a [`Clock`] and a [`Random`], so that a test
//! decides what time it is and which numbers are drawn.
//!
//! # Features
//! - `tokio` (off by default): `TokioClock`, the clock of production, and `Spawner`, which starts tasks.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod action;
mod clock;
mod error_chain;
mod key;
mod panic_message;
mod presence;
mod random;
#[cfg(feature = "tokio")]
mod spawner;

pub use action::{Action, Next};
#[cfg(feature = "tokio")]
pub use clock::TokioClock;
pub use clock::{Clock, MonotonicTime, Sleep, SuspendAwareTime, TestClock};
pub use error_chain::error_chain;
pub use key::{InvalidKey, ObjectKey};
pub use panic_message::panic_message;
pub use presence::{Presence, Sighting};
pub use random::Random;
#[cfg(feature = "tokio")]
pub use spawner::{Spawner, Task};
