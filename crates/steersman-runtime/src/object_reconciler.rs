// SPDX-License-Identifier: Apache-2.0
//! Reconcilers that get the object instead of its key.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc};

use serde::de::DeserializeOwned;
use steersman_cache::{ObjectDetail, Resource};
use steersman_cluster::{Error, ObjectExt};
use steersman_core::{Action, ObjectKey};
use tracing::{Instrument, debug_span};

use crate::{BoxError, Context, Declarations, KnownKind, Reconciler, Request, RequestKey, Undecodable};

/// Brings an object into its desired state. The object is from the cache and shared: clone it before you change it.
///
/// A deleted object is passed only to [`on_deleted`](Self::on_deleted). An object with a deletion timestamp is skipped unless it
/// has the [`finalizer`](Self::finalizer), so that a controller does not create again what is being deleted.
///
/// An object that cannot be decoded as a `K` is passed to [`undecodable`](Self::undecodable).
///
/// ```
/// use std::sync::Arc;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use steersman_runtime::{Context, ObjectReconciler};
/// use steersman_core::Action;
///
/// struct Counter;
///
/// impl ObjectReconciler<ConfigMap> for Counter {
///     type Error = steersman_cluster::Error;
///
///     async fn reconcile(&self, map: Arc<ConfigMap>, _cx: Context) -> Result<Action, Self::Error> {
///         tracing::info!(entries = map.data.as_ref().map_or(0, |data| data.len()));
///         Ok(Action::await_change())
///     }
/// }
/// ```
pub trait ObjectReconciler<K>: Send + Sync + 'static {
    /// Error of a reconcile.
    type Error: Into<BoxError> + Send;

    /// Compares the object with the cluster and writes the differences.
    fn reconcile(
        &self,
        object: Arc<K>,
        cx: Context,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// Handles a deleted object. A worker calls it, and again after an error. Default: does nothing.
    fn on_deleted(
        &self,
        key: ObjectKey,
        cx: Context,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send {
        let _ = (key, cx);
        async { Ok(Action::await_change()) }
    }

    /// Declares the kinds and permissions that the reconciler needs, in addition to those of the
    /// [`Builder`](crate::Builder). It is called when the controller is built, and when its permissions are computed.
    /// Default: none.
    fn declare(&self, declarations: &mut Declarations) {
        let _ = declarations;
    }

    /// Finalizer that delays deletion until the reconciler has cleaned up. While an object with a deletion timestamp has
    /// it, the object is passed to [`reconcile`](Self::reconcile), which has to add and remove the finalizer itself.
    /// Default: none.
    fn finalizer(&self) -> Option<&str> {
        None
    }

    /// Handles an object that cannot be decoded as a `K`, such as one that was stored before the CRD changed. It is called
    /// instead of [`reconcile`](Self::reconcile), after a Warning event `DecodeFailed` was recorded on the object. Default:
    /// a [terminal](crate::terminal) error, so that the object is not reconciled again until it changes.
    ///
    /// An object with the [`finalizer`](Self::finalizer) is not deleted until the finalizer is removed. To let the deletion
    /// finish, clean up from the raw object and call [`Undecodable::remove_finalizer`]:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_runtime::{BoxError, Context, ObjectReconciler, Undecodable};
    /// # use steersman_core::Action;
    /// # struct Cleaner;
    /// # impl ObjectReconciler<ConfigMap> for Cleaner {
    /// #     type Error = BoxError;
    /// #     async fn reconcile(&self, _: Arc<ConfigMap>, _: Context) -> Result<Action, BoxError> {
    /// #         Ok(Action::await_change())
    /// #     }
    /// async fn undecodable(&self, object: Undecodable, cx: Context) -> Result<Action, BoxError> {
    ///     if !object.is_being_deleted() {
    ///         return Err(object.into_error());
    ///     }
    ///     object.remove_finalizer("example.com/cleanup", &cx).await?;
    ///     Ok(Action::await_change())
    /// }
    /// # }
    /// ```
    fn undecodable(
        &self,
        object: Undecodable,
        cx: Context,
    ) -> impl Future<Output = Result<Action, BoxError>> + Send {
        let _ = cx;
        async move { Err(object.into_error()) }
    }
}

/// A reconciler that a controller accepts: a [`Reconciler`] of its keys, or an [`ObjectReconciler`] of its primary kind.
/// `By` is [`ByKey`] or [`ByObject`]; the compiler infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reconciler",
    note = "implement `ObjectReconciler<K>` for the kind `K` of the controller, or `Reconciler`, or wrap an async function with \
            `reconcile_fn`"
)]
pub trait AnyReconciler<R, By>: Send + Sync + 'static {
    /// Reconciles one key. `primary` is the primary kind of the controller, if it has one.
    #[doc(hidden)]
    fn reconcile_any(
        &self,
        primary: Option<&PrimaryKind>,
        request: R,
        cx: Context,
    ) -> impl Future<Output = Result<Action, BoxError>> + Send;

    /// Calls [`ObjectReconciler::declare`], if it is one.
    #[doc(hidden)]
    fn declare_any(&self, declarations: &mut Declarations<R>)
    where
        R: RequestKey,
    {
        let _ = declarations;
    }
}

/// Calling convention of a reconciler for a controller of `T`.
#[diagnostic::on_unimplemented(
    message = "the controller is of `{T}`, but its reconciler is not",
    label = "reconciles objects of another kind",
    note = "a controller of `Controller::of::<K>(…)` takes an `ObjectReconciler<K>`"
)]
pub trait Reconciles<T> {}

/// Type-level marker: this reconciler receives the request key, not the object. Inferred, never written by users.
#[derive(Debug)]
#[non_exhaustive]
pub enum ByKey {}

/// Type-level marker: this reconciler receives the object. Inferred, never written by users.
#[derive(Debug)]
pub struct ByObject<T>(PhantomData<fn() -> T>);

impl<T> Reconciles<T> for ByKey {}

impl<T> Reconciles<T> for ByObject<T> {}

/// A primary kind that is known without a controller, or not needed.
pub trait KnownPrimary {
    /// The primary kind, if it is needed.
    #[doc(hidden)]
    fn primary() -> Option<PrimaryKind>;
}

impl KnownPrimary for ByKey {
    fn primary() -> Option<PrimaryKind> {
        None
    }
}

impl<T: KnownKind> KnownPrimary for ByObject<T> {
    fn primary() -> Option<PrimaryKind> {
        Some(PrimaryKind {
            resource: Resource::of::<T>(),
            wanted: ObjectDetail::Full,
        })
    }
}

/// Primary kind of a controller, and how much of its objects the controller watches.
#[derive(Clone, Debug)]
pub struct PrimaryKind {
    pub(crate) resource: Resource,
    pub(crate) wanted: ObjectDetail,
}

impl<R: Send + 'static, T: Reconciler<R>> AnyReconciler<R, ByKey> for T {
    async fn reconcile_any(
        &self,
        _: Option<&PrimaryKind>,
        request: R,
        cx: Context,
    ) -> Result<Action, BoxError> {
        self.reconcile(request, cx).await.map_err(Into::into)
    }
}

impl<K, T> AnyReconciler<Request, ByObject<K>> for T
where
    K: kube::Resource + DeserializeOwned + Send + Sync + 'static,
    T: ObjectReconciler<K>,
{
    async fn reconcile_any(
        &self,
        primary: Option<&PrimaryKind>,
        request: Request,
        cx: Context,
    ) -> Result<Action, BoxError> {
        let primary = primary.expect("a controller of objects has a primary kind");
        let objects = cx.client().of_as::<K>(&primary.resource, primary.wanted);
        let object = match objects.get(request.key()).instrument(debug_span!("get")).await {
            Ok(Some(object)) => object,
            Ok(None) => return deleted(self, request, cx).await,
            Err(error) if error.is_undecodable() => {
                return undecodable(self, &primary.resource, request, error, cx).await;
            }
            Err(error) => return Err(error.into()),
        };
        if is_none_of(self, &*object) {
            return Ok(Action::await_change());
        }
        self.reconcile(object, cx).await.map_err(Into::into)
    }

    fn declare_any(&self, declarations: &mut Declarations) {
        self.declare(declarations);
    }
}

async fn deleted<K>(
    reconciler: &impl ObjectReconciler<K>,
    request: Request,
    cx: Context,
) -> Result<Action, BoxError> {
    let key = request.key().clone();
    reconciler.on_deleted(key, cx).await.map_err(Into::into)
}

async fn undecodable<K>(
    reconciler: &impl ObjectReconciler<K>,
    resource: &Resource,
    request: Request,
    error: Error,
    cx: Context,
) -> Result<Action, BoxError> {
    let Some(object) = Undecodable::read(resource, request.key(), error, &cx).await? else {
        return deleted(reconciler, request, cx).await;
    };
    if is_none_of(reconciler, object.object()) {
        return Ok(Action::await_change());
    }
    object.record(reconciler.finalizer(), &cx);
    reconciler.undecodable(object, cx).await
}

/// Returns true if the object is being deleted and does not have the finalizer of this reconciler.
fn is_none_of<K>(reconciler: &impl ObjectReconciler<K>, object: &impl ObjectExt) -> bool {
    let holds_ours = |finalizer| object.has_finalizer(finalizer);
    object.is_being_deleted() && !reconciler.finalizer().is_some_and(holds_ours)
}

/// A reconciler together with the primary kind of its controller.
pub(crate) struct Bound<T, By> {
    reconciler: T,
    primary: Option<PrimaryKind>,
    _by: PhantomData<fn() -> By>,
}

impl<T, By> Bound<T, By> {
    pub(crate) fn new(reconciler: T, primary: Option<PrimaryKind>) -> Self {
        Self {
            reconciler,
            primary,
            _by: PhantomData,
        }
    }
}

impl<R: Send + 'static, By: 'static, T: AnyReconciler<R, By>> Reconciler<R> for Bound<T, By> {
    type Error = BoxError;

    fn reconcile(&self, request: R, cx: Context) -> impl Future<Output = Result<Action, BoxError>> + Send {
        self.reconciler.reconcile_any(self.primary.as_ref(), request, cx)
    }
}

impl<T: fmt::Debug, By> fmt::Debug for Bound<T, By> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bound").field(&self.reconciler).finish()
    }
}
