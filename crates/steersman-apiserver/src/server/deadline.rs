// SPDX-License-Identifier: Apache-2.0
//! The deadline of a request. Only waits are bounded: a request that waits for nothing needs no timer.

use futures::future::{Either, select};

use crate::{
    clock::{Clock, Sleep},
    handler::{Call, timeout::Limit},
    status::Result,
};

/// The deadline of a request. It counts from the first wait, since handling takes no time on the server's clock.
pub(super) struct Deadline<'a> {
    call: &'a Call,
    clock: &'a dyn Clock,
    /// `None` before the first wait.
    timer: Option<Option<(Limit, Sleep)>>,
}

impl<'a> Deadline<'a> {
    pub(super) fn new(call: &'a Call, clock: &'a dyn Clock) -> Self {
        Self {
            call,
            clock,
            timer: None,
        }
    }

    /// Waits for `work` until the deadline.
    ///
    /// # Errors
    /// Returns 504 at the deadline, and drops `work`.
    pub(super) async fn within<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let timer = self.timer.get_or_insert_with(|| {
            let limit = Limit::of(self.call)?;
            let sleep = self.clock.sleep(limit.duration);
            Some((limit, sleep))
        });
        let Some((limit, sleep)) = timer else {
            return Ok(work.await);
        };
        // At the deadline, calls of webhooks time out as well: the deadline decides.
        match select(sleep, std::pin::pin!(work)).await {
            Either::Left(_) => Err(limit.failure()),
            Either::Right((output, _)) => Ok(output),
        }
    }
}
