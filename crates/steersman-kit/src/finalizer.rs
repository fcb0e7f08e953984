// SPDX-License-Identifier: Apache-2.0
//! Cleanup before an object is deleted.

use std::{future::Future, time::Duration};

use steersman_runtime::{BoxError, Context, Undecodable};

use crate::{KindReconciler, Work};

/// Cleanup of resources outside of the cluster before an object is deleted. Required by `type Finalizer = RunsCleanup`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has `type Finalizer = RunsCleanup`, but no cleanup",
    label = "`Cleanup` is not implemented for `{Self}`",
    note = "add `impl Cleanup for {Self}`, or set `type Finalizer = NoCleanup`"
)]
pub trait Cleanup: KindReconciler {
    /// Name of the finalizer, such as `example.com/registry`. Each controller of a kind has its own.
    const FINALIZER: &'static str;

    /// Cleans up before the object is deleted. After [`Cleaned::Done`] the finalizer is removed.
    fn cleanup(
        &self,
        object: &Self::Kind,
        work: &mut Work<Self>,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send;

    /// Cleans up after an object that cannot be decoded any more. Default: an error, which leaves the finalizer in place
    /// until the object is repaired.
    fn cleanup_undecodable(
        &self,
        object: &Undecodable,
        cx: &Context,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send {
        let _ = cx;
        let error = format!("cannot clean up {}: it cannot be decoded", object.key());
        async move { Err(error.into()) }
    }
}

/// Result of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cleaned {
    /// Everything is cleaned up: the finalizer is removed.
    Done,
    /// The cleanup continues after this delay.
    RetryAfter(Duration),
}

/// Whether a reconciler has a cleanup: [`NoCleanup`] or [`RunsCleanup`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a finalizer mode of `{R}`",
    label = "use `NoCleanup`, or `RunsCleanup` with `impl Cleanup for {R}`"
)]
pub trait FinalizerMode<R: KindReconciler>: 'static {
    /// Name of the finalizer, if there is one.
    const NAME: Option<&'static str>;

    /// Calls the cleanup.
    #[doc(hidden)]
    fn cleanup(
        reconciler: &R,
        object: &R::Kind,
        work: &mut Work<R>,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send;

    /// Calls the cleanup of an object that cannot be decoded.
    #[doc(hidden)]
    fn cleanup_undecodable(
        reconciler: &R,
        object: &Undecodable,
        cx: &Context,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send;
}

/// No finalizer: deletion of an object needs no cleanup.
#[derive(Debug)]
#[non_exhaustive]
pub enum NoCleanup {}

/// A finalizer that delays deletion until [`Cleanup`] is done.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunsCleanup {}

impl<R: KindReconciler> FinalizerMode<R> for NoCleanup {
    const NAME: Option<&'static str> = None;

    async fn cleanup(_: &R, _: &R::Kind, _: &mut Work<R>) -> Result<Cleaned, BoxError> {
        Ok(Cleaned::Done)
    }

    async fn cleanup_undecodable(_: &R, _: &Undecodable, _: &Context) -> Result<Cleaned, BoxError> {
        Ok(Cleaned::Done)
    }
}

impl<R: Cleanup> FinalizerMode<R> for RunsCleanup {
    const NAME: Option<&'static str> = Some(R::FINALIZER);

    fn cleanup(
        reconciler: &R,
        object: &R::Kind,
        work: &mut Work<R>,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send {
        reconciler.cleanup(object, work)
    }

    fn cleanup_undecodable(
        reconciler: &R,
        object: &Undecodable,
        cx: &Context,
    ) -> impl Future<Output = Result<Cleaned, BoxError>> + Send {
        reconciler.cleanup_undecodable(object, cx)
    }
}
