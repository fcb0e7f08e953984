// SPDX-License-Identifier: Apache-2.0
//! Several handlers of one kind, which know nothing of each other.
//!
//! A large operator does many small things about one kind of objects. As controllers of their own, each of these would have
//! a queue, and two of them would work on one object at the same time and conflict. [`Handlers`] share one informer, one
//! queue and the workers of one controller, and yet each is on its own: what one asks for or fails at is none of the
//! others' business.
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
//! 1. Each handler is called for each object that is there, changes or goes, in the order in which they were added. It is
//!    handed the newest state, with what those before it have written.
//! 2. No two of them run on one object at the same time.
//! 3. A handler that fails, or asks to be called again, is called again alone, at its own time. Its failures and its
//!    back-off are its own. A change calls all.
//! 4. One that is added while the controller runs is called for every object that is there, at low priority (so are the
//!    others), and one whose [`Handling`] drops is not called any more.
//! 5. Neither a panic of one nor one that takes too long keeps the others from running: the
//!    [`reconcile_timeout`](Builder::reconcile_timeout) is that of each of them.
//! 6. Nothing is remembered of an object with which all handlers are content, or which the controller has forgotten. The
//!    series of a handler in a controller go with either.
//! 7. What a reconcile leaves undone that is cancelled is done by the next one: all are called, and what is known of their
//!    failures counts on.
//! 8. For an object that does not decode as a `K` no handler is called. It gets a Warning event and goes to the
//!    [hook](Handlers::on_undecodable). Without a hook its reconcile is a [terminal](crate::terminal) error.

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

/// Named handlers of the objects of one type. Clones are the same handlers.
pub struct Handlers<K>(Arc<Shared<K>>);

struct Shared<K> {
    limiter: Box<dyn Limiter<Request>>,
    list: Mutex<List<K>>,
    undecodable: OnceLock<Box<UndecodableHook>>,
}

struct List<K> {
    /// In the order of their coming. Replaced as a whole, so that a reconcile has one that does not change.
    handlers: Arc<[Arc<Named<K>>]>,
    /// Of handlers, and of controllers that call them.
    arrivals: u64,
    /// Those who have to look at everything again when one comes.
    controllers: Vec<Weak<Plan<Request>>>,
}

/// A handler.
struct Named<K> {
    /// Tells it from one that had its name before.
    number: u64,
    name: Arc<str>,
    call: Box<Call<K>>,
    /// By the number of the controller that calls it.
    series: Mutex<HashMap<u64, Arc<HandlerSeries>>>,
}

type Call<K> = dyn Fn(Request, Option<Arc<K>>, Context) -> Handled + Send + Sync;
type UndecodableHook = dyn Fn(Undecodable, Context) -> Handled + Send + Sync;
type Handled = Pin<Box<dyn Future<Output = Result<Action, BoxError>> + Send>>;

/// A handler that is being called. It is not any more when this drops.
#[must_use = "the handler is taken out when this drops; say `.forever()` to keep it"]
pub struct Handling(Option<Box<dyn FnOnce() + Send + Sync>>);

/// There is a handler of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is a handler named `{name}` already: names tell them apart in logs and metrics, so give each its own"
)]
#[non_exhaustive]
pub struct DuplicateHandler {
    /// The name.
    pub name: String,
}

/// Some of the handlers failed. What went wrong was said of each.
#[derive(Debug, thiserror::Error)]
#[error("handlers failed: {}", names.join(", "))]
pub(crate) struct HandlersFailed {
    names: Vec<String>,
    /// The kinds whose caches were not in sync, because of which some of them failed.
    pub(crate) unsynced: Vec<Resource>,
}

impl<K> Handlers<K> {
    /// None yet. Those that fail wait 5 ms, twice as long each time, up to 1000 s.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limiter(Backoff::new())
    }

    /// None yet, which wait after their failures as `limiter` says.
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

    /// Sets the hook for objects that do not decode as a `K`, as
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
    /// Adds a handler, before the controller runs or while it does. It gets the object, or nothing if that is gone.
    ///
    /// # Errors
    /// When there is one of this name.
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
    /// Adds a controller with these handlers to a manager. Its [`reconcile_timeout`](Builder::reconcile_timeout) is that of
    /// each handler, not that of all together.
    ///
    /// # Errors
    /// As [`Builder::add_to`].
    pub fn add_to(&self, manager: &Manager, builder: Builder<Request, K>) -> Result<Controller, AddError> {
        let calling = Calling::new(self);
        let builder = builder.remembering(calling.memory());
        // Before it runs, so that no handler that comes now is missed by what it has done already.
        builder.add_known_to(manager, calling, |controller| self.know(controller))
    }

    /// The same without running it; see [`Builder::build`].
    pub fn build(&self, home: &steersman_cluster::Cluster, builder: Builder<Request, K>) -> Controller {
        let calling = Calling::new(self);
        let controller = builder.remembering(calling.memory()).build(home, calling);
        self.know(&controller);
        controller
    }

    /// Remembers who is to be told of handlers that come, and forgets those that are gone.
    fn know(&self, controller: &Controller) {
        let mut list = self.list();
        list.controllers.retain(|known| known.strong_count() > 0);
        list.controllers.push(Arc::downgrade(&controller.0));
    }
}

impl<K> List<K> {
    /// A number that nobody has had.
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

    /// Nobody calls it by this number any more.
    fn forget(&self, caller: u64) {
        self.all_series().remove(&caller);
    }

    fn all_series(&self) -> MutexGuard<'_, HashMap<u64, Arc<HandlerSeries>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handling {
    /// Never takes it out: it is there as long as the [`Handlers`] are.
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
