// SPDX-License-Identifier: Apache-2.0
//! Sources for events outside of clusters: streams, channels and timers.

use std::{fmt, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::sync::{Mutex, mpsc};

use super::{Source, SourceContext};
use crate::{IntoRequest, RequestKey};

/// Source of keys from a stream; from [`stream`].
pub struct Stream<F> {
    name: String,
    make: F,
}

/// Makes a source from a stream of keys. `make` makes a new stream for each run of the controller. Events while the
/// controller is stopped are seen only if the new stream repeats them.
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

/// Receiving end of a channel, a source; from [`channel`].
pub struct Channel<K> {
    name: String,
    receiver: Arc<Mutex<mpsc::Receiver<K>>>,
}

/// Sending end of a channel; from [`channel`]. Clones share the channel.
pub struct Sender<K>(mpsc::Sender<K>);

/// Makes a channel through which other code enqueues keys.
///
/// Keys that are sent while the controller does not run wait in the channel, up to `capacity` keys; then senders wait. To
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
    /// Sends a key to the controller, after waiting for room in the channel.
    ///
    /// # Errors
    /// When the controller was dropped; returns the key.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the key was not sent.
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
        // Only one run at a time holds the receiving end.
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

/// A shorter interval would starve other tasks.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Source of keys at an interval; from [`every`].
pub struct Timer<F> {
    interval: Duration,
    keys: F,
}

/// Enqueues the keys that `keys` returns, at once and then at this interval, by the clock of the run. At least 1 ms.
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
                next = now + interval; // Missed ticks are skipped.
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
