// SPDX-License-Identifier: Apache-2.0
//! Conditions of one attempt: the gate, fences and the timeout.

use std::{future::Future, sync::Arc, time::Duration};

use futures::future::select_all;
use steersman_cache::WriteGuard;
use steersman_core::{MonotonicTime, Mutex};

use super::{SendError, SharedTransport, histogram::Measured};
use crate::{Closed, Fence};

/// The request timed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no complete answer within {limit:?}")]
#[non_exhaustive]
pub struct TimedOut {
    /// The timeout.
    pub limit: Duration,
}

/// Error for which a guard rejected the bytes of a write. The server then has not received the request.
#[derive(Clone, Default)]
pub(super) struct Refused(Arc<Mutex<Option<SendError>>>);

impl Refused {
    pub(super) fn take(&self) -> Option<SendError> {
        self.0.lock().take()
    }
}

/// Conditions under which an attempt starts and continues.
#[derive(Clone)]
pub(crate) struct AttemptGuard {
    shared: Arc<SharedTransport>,
    fences: Arc<[Fence]>,
    /// Deadline, and the timeout at the start of the request.
    deadline: Option<(MonotonicTime, Duration)>,
    is_read: bool,
}

impl AttemptGuard {
    /// Creates a guard for a read, or for a write with fences.
    pub(super) fn new(
        shared: Arc<SharedTransport>,
        is_read: bool,
        fences: &Arc<[Fence]>,
        deadline: Option<(MonotonicTime, Duration)>,
    ) -> Self {
        Self {
            shared,
            fences: if is_read { Arc::new([]) } else { Arc::clone(fences) },
            deadline,
            is_read,
        }
    }

    /// Adds a request that got an answer to the histograms.
    pub(super) fn measure(&self, measured: &Measured) {
        let now = self.shared.clock.now();
        self.shared.meter.histograms.add(measured, now, true);
    }

    /// Checks that the attempt is allowed to start or continue.
    pub(super) fn check(&self) -> Result<(), SendError> {
        self.fences().try_for_each(Fence::check)?;
        match self.deadline {
            Some((deadline, limit)) if self.shared.clock.now() >= deadline => Err(TimedOut { limit }.into()),
            _ => Ok(()),
        }
    }

    /// Returns a guard that checks again when the bytes of a write are sent, and stores the error.
    pub(super) fn guard(&self) -> (WriteGuard, Refused) {
        let (pass, refused) = (self.clone(), Refused::default());
        let kept = refused.clone();
        let guard = WriteGuard::new(move || {
            pass.check().map_err(|error| {
                let text = error.to_string();
                *kept.0.lock() = Some(error);
                text.into()
            })
        });
        (guard, refused)
    }

    /// Returns the remaining time, or `None` without a limit.
    pub(super) fn remaining(&self, now: MonotonicTime) -> Option<Duration> {
        let own = self.deadline.map(|(deadline, _)| deadline.saturating_since(now));
        self.fences().filter_map(Fence::remaining).chain(own).min()
    }

    /// Runs `work` while the conditions hold. Otherwise `work` is dropped.
    pub(super) async fn over<T>(&self, work: impl Future<Output = T>) -> Result<T, SendError> {
        tokio::select! {
            biased;
            error = self.ended() => Err(error),
            done = work => Ok(done),
        }
    }

    /// Converts the error of an attempt that was under way.
    pub(super) fn given_up(&self, error: SendError) -> SendError {
        match error {
            SendError::Closed(closed) => SendError::Closed(Closed {
                was_sent: !self.is_read,
                ..closed
            }),
            other => other,
        }
    }

    /// Waits until a condition does not hold any more.
    pub(super) async fn ended(&self) -> SendError {
        let time = async {
            match self.deadline {
                Some((deadline, limit)) => {
                    self.shared.clock.sleep_until(deadline).await;
                    TimedOut { limit }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            closed = self.closed() => closed.into(),
            timed_out = time => timed_out.into(),
        }
    }

    async fn closed(&self) -> Closed {
        if self.fences.is_empty() {
            return self.shared.gate.closed().await;
        }
        let all = self.fences().map(|fence| Box::pin(fence.closed()));
        select_all(all).await.0
    }

    fn fences(&self) -> impl Iterator<Item = &Fence> {
        std::iter::once(&self.shared.gate).chain(self.fences.iter())
    }
}
