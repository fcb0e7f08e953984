// SPDX-License-Identifier: Apache-2.0
//! Reconcilers that are handed the object instead of its key.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc};

use kube::Resource as KubeResource;
use serde::de::DeserializeOwned;
use steersman_core::{Action, ObjectKey};

use crate::{BoxError, Context, Reconciler, Request, terminal};

/// Brings an object into its wanted state. The object is read from the cache: it is shared, so clone what you change.
///
/// An object that is gone is none of its business unless it says so by [`gone`](Self::gone). Neither is one that is being
/// deleted, unless it holds the [`finalizer`](Self::finalizer): so a controller does not make again what is to go.
///
/// One that does not have the shape of a `K` is reported and counted as a [terminal](crate::terminal) error: it rests until it
/// changes, and all others go on.
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
    K: KubeResource<DynamicType = ()> + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static,
    T: ObjectReconciler<K>,
{
    type Error = BoxError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, BoxError> {
        let found = cx.client().get::<K>(request.key()).await.map_err(explain)?;
        let Some(object) = found else {
            let key = request.key().clone();
            return self.inner.gone(key, cx).await.map_err(Into::into);
        };
        let meta = object.meta();
        let ours = self.inner.finalizer();
        let is_held = meta
            .finalizers
            .iter()
            .flatten()
            .any(|held| Some(held.as_str()) == ours);
        if meta.deletion_timestamp.is_some() && !is_held {
            return Ok(Action::await_change());
        }
        self.inner.reconcile(object, cx).await.map_err(Into::into)
    }
}

/// To read an object again that cannot be decoded helps only when it has changed, and then it comes by itself.
pub(crate) fn explain(error: steersman_cluster::Error) -> BoxError {
    if error.is_undecodable() {
        terminal(error).into()
    } else {
        error.into()
    }
}

impl<K, T: fmt::Debug> fmt::Debug for Objects<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.inner).finish()
    }
}
