// SPDX-License-Identifier: Apache-2.0
//! Lines of the TLS libraries.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{EnvFilter, Layer, layer::Context};

/// Drops the warnings and errors of `rustls` and of its certificate verifier. They log each failed attempt, although the
/// caller gets the same error and logs it once. A filter that enables `debug` for any target keeps them.
#[derive(Clone, Debug, Default)]
pub(super) struct QuietTls {
    is_debugging: Arc<AtomicBool>,
}

impl QuietTls {
    /// Updates the state from the filter.
    pub(super) fn follow(&self, filter: &EnvFilter) {
        let is_debugging = filter
            .max_level_hint()
            .is_none_or(|level| level >= LevelFilter::DEBUG);
        self.is_debugging.store(is_debugging, Ordering::Relaxed);
    }
}

impl<S: Subscriber> Layer<S> for QuietTls {
    fn enabled(&self, metadata: &Metadata<'_>, _cx: Context<'_, S>) -> bool {
        let is_loud = *metadata.level() <= Level::WARN && metadata.target().starts_with("rustls");
        !is_loud || self.is_debugging.load(Ordering::Relaxed)
    }
}
