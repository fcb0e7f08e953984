// SPDX-License-Identifier: Apache-2.0
//! Several independent handlers of one kind.
//!
//! A large operator does many small tasks for one kind. As separate controllers, each task would have its own queue, and
//! two of them would work on one object at the same time and conflict. [`Handlers`] share one informer, one queue and the
//! workers of one controller, and are still independent: a requeue or failure of one does not affect the others.
//!
//! ```
//! use std::{convert::Infallible, sync::Arc};
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use steersman_runtime::{Context, Controller, Handlers, AddError, Manager, Request};
//! use steersman_core::Action;
//!
//! async fn greet(_: Request, map: Option<Arc<ConfigMap>>, _: Context) -> Result<Action, Infallible> {
//!     match map {
//!         Some(map) => tracing::info!(name = map.metadata.name, "hello"),
//!         None => tracing::info!("goodbye"),
//!     }
//!     Ok(Action::await_change())
//! }
//!
//! fn add(manager: &Manager) -> Result<(), Box<dyn std::error::Error>> {
//!     let handlers = Handlers::<ConfigMap>::new();
//!     handlers.add("greet", greet)?.forever();
//!     handlers.add_to(manager, Controller::of::<ConfigMap>("maps").workers(4))?;
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//! 1. Each handler is called for each object that exists, changes or is deleted, in the order in which the handlers were
//!    added. It gets the newest state, including the writes of the handlers before it.
//! 2. No two handlers run on one object at the same time.
//! 3. A handler that fails or requeues is called again alone, after its own delay. Each handler has its own failures and
//!    back-off. A change calls all handlers.
//! 4. A handler that is added while the controller runs is called for every object that exists, at low priority (and so are
//!    the others). A handler whose [`Handling`] is dropped is not called any more.
//! 5. A handler that panics or times out does not keep the others from running: the
//!    [`reconcile_timeout`](Builder::reconcile_timeout) applies to each handler.
//! 6. No state is kept for an object for which all handlers are done, or which the controller has dropped. The metric
//!    series of a handler in a controller are removed with either of them.
//! 7. The next reconcile completes a cancelled one: all handlers are called, and their failures are kept.
//! 8. For an object that cannot be decoded as a `K`, no handler is called. The object gets a Warning event and is passed to
//!    the [hook](Handlers::on_undecodable). Without a hook, its reconcile is a [terminal](crate::terminal) error.

mod calling;
mod pending;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use steersman_cache::Resource;
use steersman_cluster::Kind as KnownType;
use steersman_core::Action;
use steersman_queue::{Backoff, Limiter};

use self::calling::Calling;
use crate::{
    AddError, BoxError, Builder, Context, Controller, Manager, Request, Undecodable, controller::Plan,
    metrics::HandlerSeries,
};

/// Named handlers of the objects of one type. Clones refer to the same handlers.
pub struct Handlers<K>(Arc<Shared<K>>);

struct Shared<K> {
    limiter: Box<dyn Limiter<Request>>,
    list: Mutex<List<K>>,
    undecodable: OnceLock<Box<UndecodableHook>>,
}

struct List<K> {
    /// In the order of their addition. Replaced as a whole, so that a reconcile has a list that does not change.
    handlers: Arc<[Arc<Named<K>>]>,
    /// Number of added handlers, and of controllers that call them.
    arrivals: u64,
    /// Controllers that have to enqueue everything when a handler is added.
    controllers: Vec<Weak<Plan<Request>>>,
}

/// A handler with its name.
struct Named<K> {
    /// Distinguishes the handler from an earlier one of its name.
    number: u64,
    name: Arc<str>,
    call: Box<Call<K>>,
    /// By the number of the calling controller.
    series: Mutex<HashMap<u64, Arc<HandlerSeries>>>,
}

type Call<K> = dyn Fn(Request, Option<Arc<K>>, Context) -> Handled + Send + Sync;
type UndecodableHook = dyn Fn(Undecodable, Context) -> Handled + Send + Sync;
type Handled = Pin<Box<dyn Future<Output = Result<Action, BoxError>> + Send>>;

/// Registration of a handler. Drop removes the handler.
#[must_use = "the handler is removed when this is dropped; call `.forever()` to keep it"]
pub struct Handling(Option<Box<dyn FnOnce() + Send + Sync>>);

/// Another handler has the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another handler is named `{name}`; give each a unique name, which identifies it in logs and metrics"
)]
#[non_exhaustive]
pub struct DuplicateHandler {
    /// The name.
    pub name: String,
}

/// Some handlers failed. Each error was logged.
#[derive(Debug, thiserror::Error)]
#[error("handlers failed: {}", names.join(", "))]
pub(crate) struct HandlersFailed {
    names: Vec<String>,
    /// Kinds whose caches were not in sync, which made some handlers fail.
    pub(crate) unsynced: Vec<Resource>,
}

impl<K> Handlers<K> {
    /// Creates an empty set. Back-off after failures: 5 ms, doubled each time up to 1000 s.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limiter(Backoff::new())
    }

    /// Creates an empty set with this back-off after failures.
    pub fn with_limiter(limiter: impl Limiter<Request>) -> Self {
        Self(Arc::new(Shared {
            limiter: Box::new(limiter),
            list: Mutex::new(List {
                handlers: Arc::new([]),
                arrivals: 0,
                controllers: Vec::new(),
            }),
            undecodable: OnceLock::new(),
        }))
    }

    /// Sets the hook for objects that cannot be decoded as a `K`, as
    /// [`ObjectReconciler::undecodable`](crate::ObjectReconciler::undecodable). Only the first call counts.
    pub fn on_undecodable<F, Fut>(&self, hook: F)
    where
        F: Fn(Undecodable, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, BoxError>> + Send + 'static,
    {
        let _ = self
            .0
            .undecodable
            .set(Box::new(move |object, cx| Box::pin(hook(object, cx))));
    }

    fn list(&self) -> MutexGuard<'_, List<K>> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Send + Sync + 'static> Handlers<K> {
    /// Adds a handler, before or during a run of the controller. It gets the object, or `None` if the object was deleted.
    ///
    /// # Errors
    /// When a handler of this name exists.
    pub fn add<F, Fut, E>(&self, name: impl Into<String>, handler: F) -> Result<Handling, DuplicateHandler>
    where
        F: Fn(Request, Option<Arc<K>>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let name = name.into();
        let mut list = self.list();
        if list.handlers.iter().any(|known| *known.name == *name) {
            return Err(DuplicateHandler { name });
        }
        let number = list.arrive();
        let named = Arc::new(Named {
            number,
            name: name.into(),
            call: Box::new(move |request, object, cx| {
                let handling = handler(request, object, cx);
                Box::pin(async move { handling.await.map_err(Into::into) })
            }),
            series: Mutex::default(),
        });
        list.handlers = list.handlers.iter().cloned().chain([named]).collect();
        let controllers = list.controllers.clone();
        drop(list);
        for controller in controllers.iter().filter_map(Weak::upgrade) {
            controller.replay();
        }
        let shared = Arc::downgrade(&self.0);
        Ok(Handling(Some(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                Self(shared).remove(number);
            }
        }))))
    }

    fn remove(&self, number: u64) {
        let mut list = self.list();
        let staying = list.handlers.iter().filter(|named| named.number != number);
        list.handlers = staying.cloned().collect();
    }
}

impl<K: KnownType> Handlers<K> {
    /// Adds a controller with these handlers to a manager. Its [`reconcile_timeout`](Builder::reconcile_timeout) applies to
    /// each handler, not to all together.
    ///
    /// # Errors
    /// As [`Builder::add_to`].
    pub fn add_to(&self, manager: &Manager, builder: Builder<Request, K>) -> Result<Controller, AddError> {
        let calling = Calling::new(self);
        let builder = builder.remembering(calling.memory());
        // Registered before it runs, so that a handler that is added now is called for every object.
        builder.add_known_to(manager, calling, |controller| self.know(controller))
    }

    /// Builds the controller without running it; see [`Builder::build`].
    pub fn build(&self, home: &steersman_cluster::Cluster, builder: Builder<Request, K>) -> Controller {
        let calling = Calling::new(self);
        let controller = builder.remembering(calling.memory()).build(home, calling);
        self.know(&controller);
        controller
    }

    /// Registers a controller that has to replay for new handlers, and drops registrations of dropped controllers.
    fn know(&self, controller: &Controller) {
        let mut list = self.list();
        list.controllers.retain(|known| known.strong_count() > 0);
        list.controllers.push(Arc::downgrade(&controller.0));
    }
}

impl<K> List<K> {
    /// Returns a new number.
    fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}

impl<K> Named<K> {
    fn series(&self, caller: u64, cx: &Context) -> Arc<HandlerSeries> {
        let mut series = self.all_series();
        let made = || Arc::new(cx.metrics().handler(cx.controller(), &self.name));
        Arc::clone(series.entry(caller).or_insert_with(made))
    }

    /// Removes the series of a controller that does not call the handler any more.
    fn forget(&self, caller: u64) {
        self.all_series().remove(&caller);
    }

    fn all_series(&self) -> MutexGuard<'_, HashMap<u64, Arc<HandlerSeries>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handling {
    /// Keeps the handler for as long as the [`Handlers`] exist.
    pub fn forever(mut self) {
        self.0 = None;
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            remove();
        }
    }
}

impl<K> Clone for Handlers<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Handlers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> fmt::Debug for Handlers<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers = Arc::clone(&self.list().handlers);
        let names = handlers.iter().map(|named| &*named.name);
        f.debug_tuple("Handlers")
            .field(&names.collect::<Vec<_>>())
            .finish()
    }
}

impl fmt::Debug for Handling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handling").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
