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
//! use steersman_controller::{Context, Controller, Handlers, Host, HostError, Request};
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
//! fn add(host: &impl Host) -> Result<(), Box<dyn std::error::Error>> {
//!     let handlers = Handlers::<ConfigMap>::new();
//!     handlers.add("greet", greet)?.forever();
//!     handlers.run_on(host, Controller::of::<ConfigMap>("maps").workers(4))?;
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
//! 5. A panic of one does not keep the others from running.
//! 6. Nothing is remembered of an object with which all handlers are content.

mod pending;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::FutureExt;
use steersman_cluster::Kind as KnownType;
use steersman_core::{Action, Next};
use steersman_queue::{Backoff, Limiter};
use tracing::Instrument;

use self::pending::{Conclusion, Pending};
use crate::{
    BoxError, Builder, Context, Controller, Host, HostError, Reconciler, Request, Terminal,
    controller::Plan,
    metrics::{Ended, HandlerSeries},
    reconciler::{Chain, RetryAfter, caused_by, retry_after},
    work::{is_quiet, message},
};

/// Named handlers of the objects of one type. Clones are the same handlers.
pub struct Handlers<K>(Arc<Shared<K>>);

struct Shared<K> {
    limiter: Box<dyn Limiter<Request>>,
    list: Mutex<List<K>>,
    pending: Mutex<HashMap<Request, Pending>>,
}

struct List<K> {
    /// In the order of their coming. Replaced as a whole, so that a reconcile has one that does not change.
    handlers: Arc<[Arc<Named<K>>]>,
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
    /// By controller.
    series: Mutex<HashMap<String, Arc<HandlerSeries>>>,
}

type Call<K> = dyn Fn(Request, Option<Arc<K>>, Context) -> Handled + Send + Sync;
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
pub struct HandlerTaken {
    /// The name.
    pub name: String,
}

/// Some of the handlers failed. What went wrong was said of each.
#[derive(Debug, thiserror::Error)]
#[error("handlers failed: {}", names.join(", "))]
pub(crate) struct HandlersFailed {
    names: Vec<String>,
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
            pending: Mutex::default(),
        }))
    }

    fn list(&self) -> MutexGuard<'_, List<K>> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<Request, Pending>> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Send + Sync + 'static> Handlers<K> {
    /// Adds a handler, before the controller runs or while it does. It gets the object, or nothing if that is gone.
    ///
    /// # Errors
    /// When there is one of this name.
    pub fn add<F, Fut, E>(&self, name: impl Into<String>, handler: F) -> Result<Handling, HandlerTaken>
    where
        F: Fn(Request, Option<Arc<K>>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Action, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let name = name.into();
        let mut list = self.list();
        if list.handlers.iter().any(|known| *known.name == *name) {
            return Err(HandlerTaken { name });
        }
        list.arrivals += 1;
        let number = list.arrivals;
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
    /// Gives a controller with these handlers to a host.
    ///
    /// # Errors
    /// As [`Builder::run_on`].
    pub fn run_on(
        &self,
        host: &(impl Host + ?Sized),
        builder: Builder<Request, K>,
    ) -> Result<Controller, HostError> {
        let controller = builder.run_on(host, Calling(self.clone()))?;
        self.list().controllers.push(Arc::downgrade(&controller.0));
        Ok(controller)
    }

    /// The same without running it; see [`Builder::build`].
    pub fn build(&self, home: &steersman_cluster::Cluster, builder: Builder<Request, K>) -> Controller {
        let controller = builder.build(home, Calling(self.clone()));
        self.list().controllers.push(Arc::downgrade(&controller.0));
        controller
    }

    /// Calls those whose turn it is, one after the other.
    async fn call(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let handlers = Arc::clone(&self.list().handlers);
        let mut pending = self.begin(&request, &cx);
        for named in &*handlers {
            let Some(attempt) = pending.is_due(named.number, cx.clock().now()) else {
                continue;
            };
            let cx = cx.of_handler(&named.name, attempt);
            let span = tracing::info_span!("handler", handler = %named.name, attempt);
            let conclusion = self.call_one(named, &request, cx).instrument(span).await?;
            pending.conclude(named.number, &named.name, conclusion);
        }
        self.end(request, pending, &handlers, &cx)
    }

    /// What is left to do about an object. Whatever happens to the reconcile, all are called again after it, unless it
    /// comes to its end.
    fn begin(&self, request: &Request, cx: &Context) -> Pending {
        let mut all = self.pending();
        let known = all.insert(request.clone(), Pending::everything());
        match known {
            Some(pending) if !cx.is_news() => pending,
            Some(pending) => pending.woken(),
            None => Pending::everything(),
        }
    }

    fn end(
        &self,
        request: Request,
        mut pending: Pending,
        handlers: &[Arc<Named<K>>],
        cx: &Context,
    ) -> Result<Action, BoxError> {
        pending.retain(|number| handlers.iter().any(|named| named.number == number));
        let (failed, next) = (pending.take_failed(), pending.next());
        let mut all = self.pending();
        match next {
            Some(_) => all.insert(request, pending),
            None => all.remove(&request),
        };
        drop(all);
        let delay = next.map(|next| {
            let left = next.saturating_since(cx.clock().now());
            // Zero would mean that nothing is left to do.
            left.max(Duration::from_nanos(1))
        });
        match (failed.is_empty(), delay) {
            (true, None) => Ok(Action::await_change()),
            (true, Some(delay)) => Ok(Action::requeue_after(delay)),
            (false, Some(delay)) => Err(retry_after(HandlersFailed { names: failed }, delay).into()),
            (false, None) => Err(crate::terminal(HandlersFailed { names: failed }).into()),
        }
    }

    async fn call_one(
        &self,
        named: &Named<K>,
        request: &Request,
        cx: Context,
    ) -> Result<Conclusion, BoxError> {
        let object = cx.client().get::<K>(request.key()).await?;
        let (series, start) = (named.series(&cx), cx.clock().now());
        let handling = async { (named.call)(request.clone(), object, cx.clone()).await };
        let result = if cx.recovers_panics() {
            let caught = AssertUnwindSafe(handling).catch_unwind().await;
            caught.unwrap_or_else(|panic| {
                cx.metrics().panicked(cx.controller());
                Err(format!("it panicked: {}", message(&*panic)).into())
            })
        } else {
            handling.await
        };
        let now = cx.clock().now();
        let (ended, conclusion) = self.judge(request, &cx, result);
        series.ran(ended, now.saturating_since(start));
        Ok(conclusion)
    }

    /// What follows from how a handler ended; says what a person should know.
    fn judge(
        &self,
        request: &Request,
        cx: &Context,
        result: Result<Action, BoxError>,
    ) -> (Ended, Conclusion) {
        let (now, failures) = (cx.clock().now(), cx.attempt() + 1);
        let back_off = || self.0.limiter.delay(request, failures, now);
        let error = match result {
            Ok(action) => {
                return match action.next() {
                    Next::After(delay) if !delay.is_zero() => {
                        (Ended::RequeueAfter, Conclusion::again(now + delay, 0))
                    }
                    Next::BackOff => (Ended::Requeue, Conclusion::again(now + back_off(), failures)),
                    _ => (Ended::Success, Conclusion::Content),
                };
            }
            Err(error) => error,
        };
        let text = Chain(&error);
        if caused_by::<Terminal>(&error).is_some() {
            tracing::error!(error = %text, "the handler failed and will not be called again until something changes");
            return (Ended::Error, Conclusion::GivenUp);
        }
        let asked = caused_by::<RetryAfter>(&error).map(RetryAfter::delay);
        let next_try = asked.unwrap_or_else(back_off);
        if is_quiet(&error) {
            tracing::debug!(error = %text, attempt = failures, ?next_try, "the handler will be called again");
        } else {
            tracing::warn!(error = %text, attempt = failures, ?next_try, "the handler failed and will be called again");
        }
        (Ended::Error, Conclusion::failed(now + next_try, failures))
    }
}

impl<K> Named<K> {
    fn series(&self, cx: &Context) -> Arc<HandlerSeries> {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = series.get(cx.controller()) {
            return Arc::clone(found);
        }
        let made = Arc::new(cx.metrics().handler(cx.controller(), &self.name));
        series.insert(cx.controller().to_owned(), Arc::clone(&made));
        made
    }
}

/// The handlers as a reconciler.
struct Calling<K>(Handlers<K>);

impl<K: KnownType> Reconciler<Request> for Calling<K> {
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        self.0.call(request, cx).await
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
