// SPDX-License-Identifier: Apache-2.0
//! Sources of what happens outside of clusters: streams, channels and timers.

use std::{fmt, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::sync::{Mutex, mpsc};

use super::{Source, SourceContext};
use crate::{IntoRequest, RequestKey};

/// A stream of keys; from [`stream`].
pub struct Stream<F> {
    name: String,
    make: F,
}

/// A stream of keys. It is made anew for each run of the controller, by `make`, so what happens while the controller is
/// stopped is seen only if a new stream tells of it.
///
/// ```
/// use steersman_runtime::{Request, stream};
/// use steersman_core::ObjectKey;
///
/// let source = stream("webhooks", || futures::stream::iter([ObjectKey::new("web", "front")]));
/// # let _ = source;
/// ```
pub fn stream<F, S>(name: impl Into<String>, make: F) -> Stream<F>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: futures::Stream + Send,
{
    Stream {
        name: name.into(),
        make,
    }
}

impl<R, F, S> Source<R> for Stream<F>
where
    R: RequestKey,
    F: Fn() -> S + Send + Sync + 'static,
    S: futures::Stream + Send,
    S::Item: IntoRequest<R> + Send,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn run(&self, cx: SourceContext<R>) {
        cx.ready();
        let mut keys = std::pin::pin!((self.make)());
        while let Some(key) = keys.next().await {
            cx.enqueue().add(key);
        }
    }
}

impl<F> fmt::Debug for Stream<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.name).finish()
    }
}

/// The controller's end of a channel; from [`channel`].
pub struct Channel<K> {
    name: String,
    receiver: Arc<Mutex<mpsc::Receiver<K>>>,
}

/// The other end. Clones share the channel.
pub struct Sender<K>(mpsc::Sender<K>);

/// A channel by which other code wakes a controller.
///
/// What is sent while the controller does not run waits in the channel, up to `capacity` keys; then senders wait. To
/// enqueue without a bound and without waiting, use [`Controller::enqueue`](crate::Controller::enqueue).
pub fn channel<K: Send + 'static>(name: impl Into<String>, capacity: usize) -> (Sender<K>, Channel<K>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let channel = Channel {
        name: name.into(),
        receiver: Arc::new(Mutex::new(receiver)),
    };
    (Sender(sender), channel)
}

impl<K> Sender<K> {
    /// Wakes the controller for a key, after waiting for room in the channel. Gives the key back if the controller is
    /// gone for good.
    ///
    /// # Errors
    /// When the controller's plan was dropped.
    ///
    /// # Cancel safety
    /// If it is dropped before it ends, the key was not sent.
    pub async fn send(&self, key: K) -> Result<(), K> {
        self.0.send(key).await.map_err(|error| error.0)
    }
}

impl<K> Clone for Sender<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R, K> Source<R> for Channel<K>
where
    R: RequestKey,
    K: IntoRequest<R> + Send + 'static,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn run(&self, cx: SourceContext<R>) {
        cx.ready();
        // One run at a time has the receiving end.
        let mut receiver = self.receiver.lock().await;
        while let Some(key) = receiver.recv().await {
            cx.enqueue().add(key);
        }
    }
}

impl<K> fmt::Debug for Sender<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for Channel<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.name).finish()
    }
}

/// A timer that never rests would leave nobody else a turn.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Keys at an interval; from [`every`].
pub struct Timer<F> {
    interval: Duration,
    keys: F,
}

/// Enqueues what `keys` gives, at once and then at this interval, counted by the clock of the run; 1 ms at least.
///
/// ```
/// use std::time::Duration;
/// use steersman_runtime::every;
/// use steersman_core::ObjectKey;
///
/// let hourly = every(Duration::from_secs(3600), || [ObjectKey::new("", "report")]);
/// # let _ = hourly;
/// ```
pub fn every<F, I>(interval: Duration, keys: F) -> Timer<F>
where
    F: Fn() -> I + Send + Sync + 'static,
    I: IntoIterator,
{
    Timer { interval, keys }
}

impl<R, F, I> Source<R> for Timer<F>
where
    R: RequestKey,
    F: Fn() -> I + Send + Sync + 'static,
    I: IntoIterator,
    I::Item: IntoRequest<R>,
{
    fn name(&self) -> String {
        format!("every {:?}", self.interval)
    }

    async fn run(&self, cx: SourceContext<R>) {
        let interval = self.interval.max(INTERVAL_MIN);
        let mut next = cx.clock().now();
        loop {
            (self.keys)().into_iter().for_each(|key| cx.enqueue().add(key));
            cx.ready();
            next = next + interval;
            let now = cx.clock().now();
            if next <= now {
                next = now + interval; // What was missed is not made up for.
            }
            cx.clock().sleep_until(next).await;
        }
    }
}

impl<F> fmt::Debug for Timer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}
