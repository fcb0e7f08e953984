// SPDX-License-Identifier: Apache-2.0
//! Several independent tasks for one object, each with its own condition.
//!
//! A large operator does many small tasks for one kind. As separate controllers, two tasks would work on one object at the same
//! time. As handlers of one reconciler they share its informers, its queue and its single write of the status.
//!
//! ```
//! use k8s_openapi::api::core::v1::Service;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use steersman_core::Action;
//! use steersman_kit::{ConditionSet, Conditions, KindReconciler, NoCleanup, Status, StatusHandler, Work};
//! use steersman_runtime::BoxError;
//!
//! #[derive(ConditionSet, Clone, Copy, Debug)]
//! #[conditions(no_summary)]
//! enum Cond {
//!     #[condition(name = "example.com/Named")]
//!     Named,
//!     #[condition(name = "example.com/Announced")]
//!     Announced,
//! }
//!
//! #[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
//! #[status(of(Service))]
//! #[serde(default)]
//! struct ServiceStatus {
//!     conditions: Conditions<Cond>,
//! }
//!
//! struct Services;
//!
//! impl KindReconciler for Services {
//!     type Kind = Service;
//!     type Status = ServiceStatus;
//!     type Children = ();
//!     type Finalizer = NoCleanup;
//!
//!     async fn reconcile(&self, service: &Service, work: &mut Work<Self>) -> Result<Action, BoxError> {
//!         work.handle(&Name, service).await;
//!         work.handle(&Announcement, service).await;
//!         Ok(Action::await_change())
//!     }
//! }
//!
//! struct Name;
//!
//! impl StatusHandler<Services> for Name {
//!     const CONDITION: Cond = Cond::Named;
//!
//!     async fn handle(&self, service: &Service, _: &mut Work<Services>) -> Result<Action, BoxError> {
//!         let name = service.metadata.name.as_deref().unwrap_or_default();
//!         match name.len() {
//!             ..=8 => Ok(Action::await_change()),
//!             _ => Err("the name is longer than 8 characters".into()),
//!         }
//!     }
//! }
//!
//! struct Announcement;
//!
//! impl StatusHandler<Services> for Announcement {
//!     const CONDITION: Cond = Cond::Announced;
//!
//!     async fn handle(&self, _: &Service, _: &mut Work<Services>) -> Result<Action, BoxError> {
//!         Ok(Action::await_change()) // … also for a Service whose name is too long
//!     }
//! }
//! ```
//!
//! # Guarantees
//! 1. Handlers run one after the other, in the order of the calls.
//! 2. After a success, the condition of the handler is `True`, unless the handler or one of its children set it.
//! 3. After an error, the condition is `False`, with the reason `Failed` or the one that the handler set. The next handler runs
//!    all the same. The reconcile fails at its end, so that all handlers are retried.
//! 4. A panic is an error with the reason `Panicked`. It continues after the status was written, so that the controller counts it.
//! 5. The object is requeued at the earliest time that one of the handlers or the reconciler returned.
//! 6. The reconcile is retried as long as one of the errors is not [terminal](steersman_runtime::terminal).

use std::{any::Any, future::Future, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use steersman_core::{Action, Mutex, Next, error_chain, panic_message};
use steersman_runtime::BoxError;
use tracing::{Instrument, info_span};

use crate::{ConditionOf, ConditionSet, KindReconciler, Work};

/// One of several independent tasks of a reconciler, with its own condition. Call it with [`Work::handle`].
pub trait StatusHandler<R: KindReconciler>: Send + Sync {
    /// Condition that reports the result. Its name is also the name of the handler in logs and errors.
    const CONDITION: ConditionOf<R>;

    /// Does the task for one object.
    fn handle(
        &self,
        object: &R::Kind,
        work: &mut Work<R>,
    ) -> impl Future<Output = Result<Action, BoxError>> + Send;
}

/// A handler that failed.
#[derive(Debug, thiserror::Error)]
#[error("handler `{handler}` failed")]
struct HandlerFailed {
    handler: &'static str,
    #[source]
    error: BoxError,
}

/// Results of the handlers of one reconcile.
#[derive(Default)]
pub(crate) struct HandlerResults {
    /// The earliest requeue.
    pub(crate) action: Action,
    /// The first panic. The lock makes it `Sync`.
    pub(crate) panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl<R: KindReconciler> Work<R> {
    /// Runs a handler and sets its condition. An error does not end the reconcile: the next handler runs, and the whole reconcile
    /// fails at its end. See [`StatusHandler`].
    ///
    /// # Cancel safety
    /// If dropped midway, the handler is dropped at its last `await`.
    pub async fn handle<H: StatusHandler<R>>(&mut self, handler: &H, object: &R::Kind) {
        let (condition, name) = (H::CONDITION, H::CONDITION.name());
        self.forget_set(name);
        let handling = AssertUnwindSafe(async { handler.handle(object, self).await });
        let handled = handling
            .catch_unwind()
            .instrument(info_span!("handler", handler = name))
            .await;
        let error = match handled {
            Ok(Ok(action)) => {
                self.handled.action = earliest(self.handled.action, action);
                return self.succeeded(condition);
            }
            Ok(Err(error)) => {
                self.failed(condition, "Failed", &error_chain(&*error));
                error
            }
            Err(panic) => {
                let message = panic_message(&*panic);
                self.failed(condition, "Panicked", &message);
                let error = format!("it panicked: {message}").into();
                self.handled.panic.lock().get_or_insert(panic);
                error
            }
        };
        let failed = HandlerFailed { handler: name, error };
        self.add_failure(failed.into());
    }
}

/// Returns the action that reconciles the object first. A requeue with back-off is taken as the earliest.
pub(crate) fn earliest(one: Action, other: Action) -> Action {
    let delay = |action: Action| match action.next() {
        Next::BackOff => Duration::ZERO,
        Next::After(delay) => delay,
        _ => Duration::MAX,
    };
    if delay(other) < delay(one) { other } else { one }
}
