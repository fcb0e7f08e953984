// SPDX-License-Identifier: Apache-2.0
//! Reconcilers that are handed the object instead of its key.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc};

use kube::core::ObjectMeta;
use steersman_cluster::{Error, Kind as KnownType};
use steersman_core::{Action, ObjectKey};

use crate::{BoxError, Context, Reconciler, Request, Undecodable};

/// Brings an object into its wanted state. The object is read from the cache: it is shared, so clone what you change.
///
/// An object that is gone is none of its business unless it says so by [`gone`](Self::gone). Neither is one that is being
/// deleted, unless it holds the [`finalizer`](Self::finalizer): so a controller does not make again what is to go.
///
/// An object that does not decode as a `K` goes to [`undecodable`](Self::undecodable).
///
/// ```
/// use std::sync::Arc;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use steersman_controller::{Context, ObjectReconciler};
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
/// # let _ = steersman_controller::objects(Counter);
/// ```
pub trait ObjectReconciler<K>: Send + Sync + 'static {
    /// What goes wrong.
    type Error: Into<BoxError> + Send;

    /// Looks at the object, and does what is missing.
    fn reconcile(
        &self,
        object: Arc<K>,
        cx: Context,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// The object is not there any more. It is called on a worker, and again after an error. Default: nothing is done.
    fn gone(&self, key: ObjectKey, cx: Context) -> impl Future<Output = Result<Action, Self::Error>> + Send {
        let _ = (key, cx);
        async { Ok(Action::await_change()) }
    }

    /// The finalizer with which it holds objects back until it has cleaned up after them. Adding it and taking it off is up
    /// to [`reconcile`](Self::reconcile): this says only that objects which are being deleted are handed to it as long as
    /// they have it. Default: none.
    fn finalizer(&self) -> Option<&str> {
        None
    }

    /// Handles an object that does not decode as a `K`, such as one that was stored before the CRD changed. It is called in the
    /// place of [`reconcile`](Self::reconcile), after a Warning event `DecodeFailed` was recorded on the object. Default: a
    /// [terminal](crate::terminal) error, so that the object is not reconciled again until it changes.
    ///
    /// An object that holds the [`finalizer`](Self::finalizer) stays after its deletion until the finalizer is removed. To let the
    /// deletion finish, clean up by what the raw object says and call [`Undecodable::remove_finalizer`]:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use steersman_controller::{BoxError, Context, ObjectReconciler, Undecodable};
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
    /// # let _ = steersman_controller::objects(Cleaner);
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

/// An [`ObjectReconciler`] as a [`Reconciler`]; from [`objects`].
pub struct Objects<K, T> {
    inner: T,
    _kind: PhantomData<fn() -> K>,
}

/// Reads each object from the cache before the reconciler is called with it.
pub fn objects<K, T: ObjectReconciler<K>>(reconciler: T) -> Objects<K, T> {
    Objects {
        inner: reconciler,
        _kind: PhantomData,
    }
}

impl<K, T> Reconciler<Request> for Objects<K, T>
where
    K: KnownType,
    T: ObjectReconciler<K>,
{
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let object = match cx.client().get::<K>(request.key()).await {
            Ok(Some(object)) => object,
            Ok(None) => return self.gone(request, cx).await,
            Err(error) if error.is_undecodable() => return self.undecodable(request, error, cx).await,
            Err(error) => return Err(error.into()),
        };
        if self.is_none_of_ours(object.meta()) {
            return Ok(Action::await_change());
        }
        self.inner.reconcile(object, cx).await.map_err(Into::into)
    }
}

impl<K: KnownType, T: ObjectReconciler<K>> Objects<K, T> {
    async fn gone(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let key = request.key().clone();
        self.inner.gone(key, cx).await.map_err(Into::into)
    }

    async fn undecodable(&self, request: Request, error: Error, cx: Context) -> Result<Action, BoxError> {
        let Some(object) = Undecodable::read::<K>(request.key(), error, &cx).await? else {
            return self.gone(request, cx).await;
        };
        if self.is_none_of_ours(&object.object().metadata) {
            return Ok(Action::await_change());
        }
        object.record::<K>(self.inner.finalizer(), &cx);
        self.inner.undecodable(object, cx).await
    }

    /// Whether the object is being deleted and does not have the finalizer of this reconciler.
    fn is_none_of_ours(&self, metadata: &ObjectMeta) -> bool {
        let ours = self.inner.finalizer();
        let mut finalizers = metadata.finalizers.iter().flatten();
        metadata.deletion_timestamp.is_some() && !finalizers.any(|held| Some(held.as_str()) == ours)
    }
}

impl<K, T: fmt::Debug> fmt::Debug for Objects<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.inner).finish()
    }
}
