// SPDX-License-Identifier: Apache-2.0
//! Watches: a filtered replay of the log.
//!
//! # Guarantees
//! 1. Every revision after the first is delivered, in order and once; nothing is merged.
//! 2. An object that leaves the selector's sight, or is removed, is DELETED with its old content and the new revision.
//! 3. A watch from a revision that is compacted answers 200 and one ERROR event of code 410, then ends.
//! 4. A reader that falls behind the log's end, and a watch of a kind that is torn down, end without an error.

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

/// How often bookmarks are sent.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// A last bookmark is sent this long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Events are written out until this many bytes are there.
const CHUNK: usize = 64 * 1024;

/// A watch that is about to begin.
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
    /// The present state first; the end of it is marked if asked for.
    State {
        items: Vec<Arc<Stored>>,
        revision: u64,
        mark: bool,
    },
    After(u64),
    Failed(Failure),
}

/// What a watch sees of the log.
#[derive(Debug)]
struct View {
    group: String,
    plural: String,
    storage: StorageId,
    epoch: u64,
    prefix: String,
    selector: Selector,
    representation: Representation,
    /// No event was sent yet.
    is_fresh: bool,
}

/// Begins a watch.
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
            // Tried again once the revision is there; if it does not come, the stream says so.
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
        // As the real server: anywhere between half an hour and an hour.
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
    };
    Ok(Reply::content(Content::Watch(Box::new(Plan {
        view,
        start: begin,
        bookmarks: options.bookmarks,
        timeout,
    }))))
}

impl View {
    /// Writes the event of an entry, if it is seen.
    fn event(&mut self, entry: &Entry, out: &mut BytesMut) {
        if entry.storage != self.storage || !entry.key.starts_with(&self.prefix) {
            return;
        }
        let seen = |stored: &Option<Arc<Stored>>| {
            stored
                .as_ref()
                .filter(|stored| self.selector.sees(stored))
                .cloned()
        };
        match (seen(&entry.old), seen(&entry.new)) {
            (None, Some(new)) => self.tell("ADDED", &new, out),
            (Some(_), Some(new)) => self.tell("MODIFIED", &new, out),
            (Some(_), None) => {
                if let Some(departed) = entry.departed() {
                    self.tell("DELETED", departed, out);
                }
            }
            (None, None) => {}
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
    /// How many events were sent, for faults that count them.
    sent: usize,
    control: Control,
    deadline: Sleep,
    bookmark: Option<Sleep>,
    last_bookmark: Option<Sleep>,
    changed: tokio::sync::watch::Receiver<u64>,
    ended: bool,
}

/// What a stream has to do next.
enum Woken {
    /// See what there is.
    Changed,
    Bookmark,
    End,
}

/// What a stream waited for.
enum Timer {
    Changed,
    /// Pretended workloads have something to do.
    Due,
    Bookmark,
    LastBookmark,
    End,
}

/// The events of a watch as lines of JSON.
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
                    // What a paused stream would say now, it says never or when it goes on.
                    Woken::Changed | Woken::Bookmark => continue,
                }
            }
            if let Some(how) = self.control.cut_after(self.sent) {
                return self.cut(how);
            }
            let limit = self.control.limit().map(|limit| limit.saturating_sub(self.sent));
            match self.events(limit) {
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

    /// Waits for whatever comes next. A timer that has run out is renewed or gone afterwards, whoever waited for it.
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
            // The sender lives as long as the server, which this stream holds.
            changed = self.changed.changed() => if changed.is_ok() { Timer::Changed } else { Timer::End },
            () = self.control.changed() => Timer::Changed,
            () = async { match due { Some(sleep) => sleep.await, None => pending().await } } => Timer::Due,
            () = async { match &mut self.last_bookmark { Some(sleep) => sleep.await, None => pending().await } } => Timer::LastBookmark,
            () = async { match &mut self.bookmark { Some(sleep) => sleep.await, None => pending().await } } => Timer::Bookmark,
        }
    }

    /// Ends the stream in the way that a fault asks for.
    fn cut(&mut self, how: Cut) -> Option<std::result::Result<Bytes, BodyError>> {
        match how {
            Cut::Clean => None,
            Cut::Reset => {
                self.ended = true;
                Some(Err(BodyError::Reset))
            }
            Cut::MidLine => {
                // The next event, or a bookmark if there is none, up to its middle; then the connection breaks.
                self.control.reset_next();
                let next = self
                    .events(Some(1))
                    .filter(|events| !events.is_empty())
                    .unwrap_or_else(|| self.mark());
                let first = next.iter().position(|byte| *byte == b'\n').unwrap_or(next.len());
                Some(Ok(next.slice(..first / 2)))
            }
        }
    }

    /// At most so many events, of those that the watch begins with or else of the log; nothing once it has to end.
    fn events(&mut self, limit: Option<usize>) -> Option<Bytes> {
        if let Some(start) = self.start.take()
            && let Some(first) = self.begin(start, limit)
        {
            return Some(first);
        }
        self.replay(limit)
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
                    // Cut before the rest, and before the mark of the end.
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

    /// The events that are there now; nothing once the watch has to end.
    fn replay(&mut self, limit: Option<usize>) -> Option<Bytes> {
        let mut out = BytesMut::new();
        self.changed.mark_unchanged();
        self.view.representation.at(self.server.clock.now());
        let state = self.server.lock();
        let alive = state
            .registry
            .find(&self.view.group, &self.view.plural)
            .is_some_and(|resource| resource.epoch == self.view.epoch);
        // What was written before the kind was torn down is still told.
        let until = state.store.revision();
        if self.cursor < state.store.compacted() && self.cursor < until {
            // Too slow for the log, as for the buffers of the real server.
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
            let before = out.len();
            self.view.event(entry, &mut out);
            events += usize::from(out.len() > before);
            self.cursor = entry.revision;
        }
        self.sent += events;
        drop(state);
        if out.is_empty() && !alive {
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
