// SPDX-License-Identifier: Apache-2.0
//! Handlers and their registrations.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use steersman_core::{Clock, Random, Task};
use tokio::sync::watch;

use super::{Event, dispatch::Dispatch, stats::HandlerCounters};
use crate::jitter::scaled;

/// Receives the events of an informer. Must be quick. Closures implement it.
pub trait EventHandler: Send + Sync + 'static {
    /// Called once for each event, in order, on the informer's task.
    fn on(&self, event: &Event);

    /// Called when the informer was ended and delivers no further event. Default: does nothing.
    fn ended(&self) {}
}

impl<F: Fn(&Event) + Send + Sync + 'static> EventHandler for F {
    fn on(&self, event: &Event) {
        self(event);
    }
}

/// Keeps a handler registered. Dropping it unregisters and drops the handler, at once or after the call in progress. The
/// informer holds the handler weakly, so a handler can hold a client or a cluster whose cache holds the informer.
#[derive(Debug)]
#[must_use = "dropping this unregisters the handler"]
pub struct Registration {
    registered: Arc<Registered>,
    _resync: Option<Task>,
}

pub(super) struct Registered {
    name: String,
    handler: Box<dyn EventHandler>,
    counters: Arc<HandlerCounters>,
    synced: watch::Sender<bool>,
}

impl Registration {
    pub(super) fn new(registered: Arc<Registered>, resync: Option<Task>) -> Self {
        Self {
            registered,
            _resync: resync,
        }
    }

    /// Waits until the handler received every object of the first list, or the informer was ended.
    ///
    /// # Cancel safety
    /// Safe to drop at any time.
    pub async fn synced(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .registered
            .synced
            .subscribe()
            .wait_for(|synced| *synced)
            .await;
    }

    /// Returns true if the handler received every object of the first list.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.registered.synced.borrow()
    }
}

impl Registered {
    pub(super) fn new(name: &str, handler: Box<dyn EventHandler>, counters: Arc<HandlerCounters>) -> Self {
        Self {
            name: name.to_owned(),
            handler,
            counters,
            synced: watch::Sender::new(false),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn call(&self, event: &Event) {
        self.handler.on(event);
    }

    pub(super) fn counters(&self) -> &HandlerCounters {
        &self.counters
    }

    /// Notifies the handler that no further event follows.
    pub(super) fn end(&self) {
        self.handler.ended();
    }

    pub(super) fn set_synced(&self) {
        self.synced
            .send_if_modified(|synced| !std::mem::replace(synced, true));
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Calls one handler for all objects at about this interval, as long as the informer lives and the handler is registered.
/// Zero: never.
pub(super) async fn resync(
    registered: Weak<Registered>,
    dispatch: Weak<Dispatch>,
    every: Duration,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
) {
    if every.is_zero() {
        return;
    }
    loop {
        // A tenth up or down, so that resyncs do not all run at once.
        let interval = scaled(every, 0.9 + 0.2 * random.fraction());
        clock.sleep_until(clock.now() + interval).await;
        let Some(keys) = dispatch.upgrade().map(|dispatch| dispatch.keys()) else {
            return;
        };
        // In small portions, so that changes are delivered in between.
        for portion in keys.chunks(256) {
            let (Some(dispatch), Some(registered)) = (dispatch.upgrade(), registered.upgrade()) else {
                return;
            };
            dispatch.resync(&registered, portion);
            drop((dispatch, registered));
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Mutex,
        task::{Context, Waker},
    };

    use steersman_core::TestClock;

    use super::{super::stats::HandlerCounters, *};
    use crate::{Object, Resource, StoreOptions, reflector::Sink, store::store};

    fn object(name: &str) -> Arc<Object> {
        Object::shared_from_slice(format!(r#"{{"metadata":{{"name":"{name}"}}}}"#).as_bytes()).unwrap()
    }

    fn dispatch(clock: &TestClock) -> Arc<Dispatch> {
        let kind = Resource::new("", "v1", "ConfigMap", "configmaps");
        let (writer, store) = store(StoreOptions::new());
        Arc::new(Dispatch::new(kind, writer, store, Arc::new(clock.clone())))
    }

    /// Registers a handler that records for each event whether it is a resync.
    fn register(dispatch: &Dispatch) -> (Arc<Registered>, Arc<Mutex<Vec<bool>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let handler = move |event: &Event| {
            heard
                .lock()
                .unwrap()
                .push(matches!(event, Event::Resynced { .. }));
        };
        let counters = Arc::new(HandlerCounters::default());
        let registered = Arc::new(Registered::new("test", Box::new(handler), counters));
        dispatch.register(&registered);
        said.lock().unwrap().clear();
        (registered, said)
    }

    #[test]
    fn an_interval_of_zero_disables_resync() {
        let clock = TestClock::new();
        let dispatch = dispatch(&clock);
        dispatch.add_part("", false).changed(object("a"));
        let (registered, said) = register(&dispatch);
        let registered = Arc::downgrade(&registered);
        let random = Arc::new(Random::from_seed(1));
        let weak = Arc::downgrade(&dispatch);
        let mut resync = Box::pin(resync(registered, weak, Duration::ZERO, Arc::new(clock), random));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(resync.as_mut().poll(&mut cx).is_ready(), "nothing is left to do");
        assert!(said.lock().unwrap().is_empty());
    }

    // R125
    #[test]
    fn delivers_a_change_during_a_long_resync() {
        let clock = TestClock::new();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let dispatch = dispatch(&clock);
        let mut part = dispatch.add_part("", false);
        (0..1000).for_each(|number| _ = part.changed(object(&number.to_string())));
        let (registered, said) = register(&dispatch);

        let random = Arc::new(Random::from_seed(1));
        let second = Duration::from_secs(1);
        let weak = Arc::downgrade(&dispatch);
        let mut resync = Box::pin(resync(Arc::downgrade(&registered), weak, second, shared, random));
        let mut step = || {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(resync.as_mut().poll(&mut cx).is_pending(), "it goes on");
        };
        step();
        clock.advance(2 * second);
        step();
        assert_eq!(said.lock().unwrap().len(), 256);
        part.changed(object("new"));
        (0..4).for_each(|_| step());
        let said = said.lock().unwrap();
        assert_eq!(said.iter().position(|is_resync| !is_resync), Some(256));
        assert_eq!(said.len(), 1001);
    }
}
