// SPDX-License-Identifier: Apache-2.0
//! Panics as log lines.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
};

use tracing::{Level, dispatcher, subscriber::NoSubscriber};

/// Logs each panic as one line. If `keeps_previous` is true, calls the earlier hook as well.
pub(super) fn log_panics(keeps_previous: bool) {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let is_logged = log(info);
        if keeps_previous || !is_logged {
            previous(info);
        }
    }));
}

/// Logs a panic and returns `true`, unless the filter drops the line or another line is being written.
fn log(info: &PanicHookInfo<'_>) -> bool {
    // `enabled!` can use the cached interest of the callsite, so it does not detect a line that is being written.
    let is_dropped = dispatcher::get_default(|dispatch| dispatch.is::<NoSubscriber>());
    if is_dropped || !tracing::enabled!(Level::ERROR) {
        return false;
    }
    let backtrace = Backtrace::capture();
    let is_captured = backtrace.status() == BacktraceStatus::Captured;
    tracing::error!(
        panic = info.payload_as_str().unwrap_or("no message"),
        location = info.location().map(tracing::field::display),
        thread = thread::current().name(),
        backtrace = is_captured.then(|| tracing::field::display(&backtrace)),
        "panicked"
    );
    true
}
