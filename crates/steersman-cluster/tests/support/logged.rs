// SPDX-License-Identifier: Apache-2.0
//! Captured logs.

use std::sync::{Arc, Mutex, OnceLock};

/// Remembers what is logged where it is the subscriber.
#[derive(Clone, Default)]
pub struct Logged(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 = format!("{} {field}={value:?}", self.0);
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Logged {
    /// Captures the logs of all threads of this process.
    pub fn of_process() -> &'static Self {
        static ALL: OnceLock<Logged> = OnceLock::new();
        ALL.get_or_init(|| {
            let logged = Self::default();
            tracing::subscriber::set_global_default(logged.clone()).unwrap();
            logged
        })
    }

    /// The lines so far, such as `WARN message=… code=403`.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
