// SPDX-License-Identifier: Apache-2.0
//! Watches: a filtered replay of the log.
//!
//! # Guarantees
//! 1. Every revision after the first is delivered in order and exactly once; events are never merged.
//! 2. An object that stops matching the selector, or is removed, is sent as DELETED with its old content and the new
//!    revision.
//! 3. A watch from a compacted revision responds with 200 and one ERROR event with code 410, then closes.
//! 4. A watch whose reader falls behind the log, or whose kind is no longer served, closes without an error.

use std::{sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;

use super::{Call, Content, Reply, Target, options::ListOptions, representation};
use crate::{
    body::BodyError,
    clock::Sleep,
    fault::control::{Control, Cut},
    representation::Representation,
    selector::Selector,
    server::Inner,
    state::Context,
    status::{Failure, Result},
    store::{Entry, StorageId, Stored},
};

/// Interval between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Time between the last bookmark and the end of the watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Size in bytes at which a chunk of events is sent.
const CHUNK: usize = 64 * 1024;

/// Number of events that one call of a conversion webhook converts.
const BATCH: usize = 100;

/// A watch that has not started yet.
#[derive(Debug)]
pub(crate) struct Plan {
    view: View,
    start: Start,
    bookmarks: bool,
    timeout: Duration,
}

impl Plan {
    pub(crate) fn begins_with_state(&self) -> bool {
        matches!(self.start, Start::State { .. })
    }
}

#[derive(Debug)]
enum Start {
    /// Sends the current state first, and a bookmark after it if the client asked for one.
    State {
        items: Vec<Arc<Stored>>,
        revision: u64,
        mark: bool,
    },
    After(u64),
    Failed(Failure),
}

/// The filter of a watch over the log.
#[derive(Debug)]
struct View {
    group: String,
    plural: String,
    storage: StorageId,
    epoch: u64,
    prefix: String,
    selector: Selector,
    representation: Representation,
    /// True until the first event is sent.
    is_fresh: bool,
    /// True once the initial state is converted.
    is_begun: bool,
}

/// Starts a watch.
pub(crate) fn start(cx: &mut Context<'_>, call: &Call, target: &Target) -> Result<Reply> {
    let representation = representation(call, target)?;
    let options = ListOptions::parse(
        &call.query,
        &target.resource,
        target.version(),
        &target.name,
        true,
    )?;
    let store = &cx.state.store;
    let current = store.revision();
    let floor = target.resource.floor.max(store.compacted());
    let prefix = target.resource.prefix(&target.namespace);
    let begin = match (options.send_initial_events, options.revision) {
        (Some(true), Some(revision)) if revision > current => {
            // The server retries once the revision exists. If it does not arrive in time, the stream reports that.
            return Ok(Reply::content(Content::Wait(revision)));
        }
        (Some(true), _) => {
            let found = store.scan(target.resource.storage, &prefix, None, current);
            let items = found
                .into_iter()
                .map(|(_, stored)| stored)
                .filter(|stored| options.selector.sees(stored))
                .collect();
            Start::State {
                items,
                revision: current,
                mark: options.bookmarks,
            }
        }
        (_, None | Some(0)) => Start::After(current),
        (_, Some(revision)) if revision < floor => Start::Failed(Failure::expired(format!(
            "too old resource version: {revision} ({floor})"
        ))),
        (_, Some(revision)) => Start::After(revision),
    };
    let timeout = match options.timeout_seconds {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
        // As on the real server: a random time between 30 and 60 minutes.
        _ => Duration::from_secs(1800 + cx.state.random.next() % 1800),
    };
    let view = View {
        group: target.resource.group.clone(),
        plural: target.resource.plural.clone(),
        storage: target.resource.storage,
        epoch: target.resource.epoch,
        prefix,
        selector: options.selector,
        representation,
        is_fresh: true,
        is_begun: false,
    };
    Ok(Reply::content(Content::Watch(Box::new(Plan {
        view,
        start: begin,
        bookmarks: options.bookmarks,
        timeout,
    }))))
}

impl View {
    /// Returns the event of an entry, if the watch selects it.
    fn event(&self, entry: &Entry) -> Option<(&'static str, Arc<Stored>)> {
        if entry.storage != self.storage || !entry.key.starts_with(&self.prefix) {
            return None;
        }
        let seen = |stored: &Option<Arc<Stored>>| {
            stored
                .as_ref()
                .filter(|stored| self.selector.sees(stored))
                .cloned()
        };
        match (seen(&entry.old), seen(&entry.new)) {
            (None, Some(new)) => Some(("ADDED", new)),
            (Some(_), Some(new)) => Some(("MODIFIED", new)),
            (Some(_), None) => Some(("DELETED", Arc::clone(entry.departed()?))),
            (None, None) => None,
        }
    }
}

impl View {
    fn tell(&mut self, kind: &str, stored: &Stored, out: &mut BytesMut) {
        let first = std::mem::take(&mut self.is_fresh);
        line(kind, &self.representation.event(stored, first), out);
    }
}

fn line(kind: &str, object: &[u8], out: &mut BytesMut) {
    out.reserve(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
}

struct Events {
    server: Arc<Inner>,
    view: View,
    start: Option<Start>,
    cursor: u64,
    /// Number of events sent, for faults that count them.
    sent: usize,
    control: Control,
    deadline: Sleep,
    bookmark: Option<Sleep>,
    last_bookmark: Option<Sleep>,
    changed: tokio::sync::watch::Receiver<u64>,
    ended: bool,
}

/// The next action of a stream.
enum Woken {
    /// Send the available events.
    Changed,
    Bookmark,
    End,
}

/// The cause of a stream's wake-up.
enum Timer {
    Changed,
    /// Simulated workloads have work to do.
    Due,
    Bookmark,
    LastBookmark,
    End,
}

/// Streams the events of a watch as lines of JSON.
pub(crate) fn stream(
    server: Arc<Inner>,
    plan: Plan,
    control: Control,
) -> impl Stream<Item = std::result::Result<Bytes, BodyError>> + Send {
    let clock = Arc::clone(&server.clock);
    let last = plan
        .bookmarks
        .then(|| plan.timeout.checked_sub(LAST_BOOKMARK))
        .flatten()
        .filter(|last| !last.is_zero());
    let events = Events {
        changed: server.revisions.subscribe(),
        deadline: clock.sleep(plan.timeout),
        bookmark: plan.bookmarks.then(|| clock.sleep(BOOKMARK_INTERVAL)),
        last_bookmark: last.map(|last| clock.sleep(last)),
        view: plan.view,
        start: Some(plan.start),
        cursor: 0,
        sent: 0,
        control,
        ended: false,
        server,
    };
    futures::stream::unfold(events, |mut events| async move {
        events.next().await.map(|item| (item, events))
    })
}

impl Events {
    async fn next(&mut self) -> Option<std::result::Result<Bytes, BodyError>> {
        loop {
            if self.ended {
                return None;
            }
            if self.control.is_paused() {
                match self.wait().await {
                    Woken::End => return None,
                    // A paused stream sends nothing now; it sends skipped events after it resumes, and skipped
                    // bookmarks never.
                    Woken::Changed | Woken::Bookmark => continue,
                }
            }
            if let Some(how) = self.control.cut_after(self.sent) {
                return self.cut(how).await;
            }
            let limit = self.control.limit().map(|limit| limit.saturating_sub(self.sent));
            match self.events(limit).await {
                None => return None,
                Some(events) if !events.is_empty() => return Some(Ok(events)),
                Some(_) => {}
            }
            if self.control.cut_after(self.sent).is_some() {
                continue;
            }
            match self.wait().await {
                Woken::Changed => {}
                Woken::End => return None,
                Woken::Bookmark => return Some(Ok(self.mark())),
            }
        }
    }

    /// Waits for the next wake-up. An expired timer is rescheduled or cleared before this returns.
    async fn wait(&mut self) -> Woken {
        match self.timers().await {
            Timer::End => Woken::End,
            Timer::Changed => Woken::Changed,
            Timer::Due => {
                self.server.tick();
                Woken::Changed
            }
            Timer::Bookmark => {
                self.bookmark = Some(self.server.clock.sleep(BOOKMARK_INTERVAL));
                Woken::Bookmark
            }
            Timer::LastBookmark => {
                self.last_bookmark = None;
                Woken::Bookmark
            }
        }
    }

    async fn timers(&mut self) -> Timer {
        let pending = std::future::pending::<()>;
        let due = self.server.next_due().map(|after| self.server.clock.sleep(after));
        tokio::select! {
            biased;
            () = &mut self.deadline => Timer::End,
            // The sender lives as long as the server, and this stream holds the server.
            changed = self.changed.changed() => if changed.is_ok() { Timer::Changed } else { Timer::End },
            () = self.control.changed() => Timer::Changed,
            () = async { match due { Some(sleep) => sleep.await, None => pending().await } } => Timer::Due,
            () = async { match &mut self.last_bookmark { Some(sleep) => sleep.await, None => pending().await } } => Timer::LastBookmark,
            () = async { match &mut self.bookmark { Some(sleep) => sleep.await, None => pending().await } } => Timer::Bookmark,
        }
    }

    /// Ends the stream as a fault requests.
    async fn cut(&mut self, how: Cut) -> Option<std::result::Result<Bytes, BodyError>> {
        match how {
            Cut::Clean => None,
            Cut::Reset => {
                self.ended = true;
                Some(Err(BodyError::Reset))
            }
            Cut::MidLine => {
                // Sends the next event, or a bookmark if there is none, up to its middle; then resets the connection.
                self.control.reset_next();
                let next = self
                    .events(Some(1))
                    .await
                    .filter(|events| !events.is_empty())
                    .unwrap_or_else(|| self.mark());
                let first = next.iter().position(|byte| *byte == b'\n').unwrap_or(next.len());
                Some(Ok(next.slice(..first / 2)))
            }
        }
    }

    /// Returns at most `limit` events from the initial state, or else from the log; `None` once the watch has to close.
    async fn events(&mut self, limit: Option<usize>) -> Option<Bytes> {
        if let Some(mut start) = self.start.take() {
            if let Start::State { items, .. } = &mut start
                && self.view.representation.is_by_webhook()
                && !std::mem::replace(&mut self.view.is_begun, true)
            {
                match self.view.representation.convert(&self.server, items).await {
                    Ok(converted) => *items = converted,
                    Err(failure) => start = Start::Failed(failure),
                }
            }
            if let Some(first) = self.begin(start, limit) {
                return Some(first);
            }
        }
        let mut events = Vec::new();
        let out = self.replay(limit, &mut events)?;
        if events.is_empty() {
            return Some(out);
        }
        Some(self.converted(events).await)
    }

    /// Writes events whose objects a webhook converts.
    async fn converted(&mut self, events: Vec<(&'static str, Arc<Stored>)>) -> Bytes {
        let mut out = BytesMut::new();
        let (kinds, items): (Vec<_>, Vec<_>) = events.into_iter().unzip();
        match self.view.representation.convert(&self.server, &items).await {
            Ok(items) => {
                for (kind, stored) in kinds.into_iter().zip(items) {
                    self.view.tell(kind, &stored, &mut out);
                }
            }
            Err(failure) => {
                self.ended = true;
                line("ERROR", failure.body().to_string().as_bytes(), &mut out);
            }
        }
        out.freeze()
    }

    fn begin(&mut self, start: Start, limit: Option<usize>) -> Option<Bytes> {
        match start {
            Start::After(revision) => {
                self.cursor = revision;
                None
            }
            Start::Failed(failure) => {
                self.ended = true;
                let mut out = BytesMut::new();
                line("ERROR", failure.body().to_string().as_bytes(), &mut out);
                Some(out.freeze())
            }
            Start::State {
                items,
                revision,
                mark,
            } => {
                self.cursor = revision;
                let mut out = BytesMut::new();
                let now = limit.unwrap_or(items.len()).min(items.len());
                for stored in &items[..now] {
                    self.view.tell("ADDED", stored, &mut out);
                }
                self.sent += now;
                if limit == Some(now) {
                    // The limit cuts the rest of the state and the bookmark after it.
                    self.start = Some(Start::State {
                        items: items[now..].to_vec(),
                        revision,
                        mark,
                    });
                } else if mark {
                    line(
                        "BOOKMARK",
                        &self.view.representation.bookmark(revision, true),
                        &mut out,
                    );
                }
                (!out.is_empty()).then(|| out.freeze())
            }
        }
    }

    /// Returns the events that are available now; `None` once the watch has to close. Events that a webhook converts are
    /// added to `to_convert` instead.
    fn replay(
        &mut self,
        limit: Option<usize>,
        to_convert: &mut Vec<(&'static str, Arc<Stored>)>,
    ) -> Option<Bytes> {
        let by_webhook = self.view.representation.is_by_webhook();
        let mut out = BytesMut::new();
        self.changed.mark_unchanged();
        self.view.representation.at(self.server.clock.now());
        let state = self.server.lock();
        let alive = state
            .registry
            .find(&self.view.group, &self.view.plural)
            .is_some_and(|resource| resource.epoch == self.view.epoch);
        // Entries from before the kind was removed are still sent.
        let until = state.store.revision();
        if self.cursor < state.store.compacted() && self.cursor < until {
            // The reader is too slow for the log, as it would be for the watch buffers of the real server.
            return None;
        }
        if self.cursor > until {
            return alive.then(Bytes::new);
        }
        let mut events = 0;
        for entry in state.store.since(self.cursor) {
            if limit.is_some_and(|limit| events >= limit) || out.len() >= CHUNK {
                break;
            }
            if let Some((kind, stored)) = self.view.event(entry) {
                events += 1;
                if by_webhook {
                    to_convert.push((kind, stored));
                } else {
                    self.view.tell(kind, &stored, &mut out);
                }
            }
            self.cursor = entry.revision;
            if to_convert.len() >= BATCH {
                break;
            }
        }
        self.sent += events;
        drop(state);
        if out.is_empty() && to_convert.is_empty() && !alive {
            return None;
        }
        Some(out.freeze())
    }

    fn mark(&self) -> Bytes {
        let mut out = BytesMut::new();
        line(
            "BOOKMARK",
            &self.view.representation.bookmark(self.cursor, false),
            &mut out,
        );
        out.freeze()
    }
}
