// SPDX-License-Identifier: Apache-2.0
//! Lists and watches one resource in one scope.
//!
//! # Guarantees
//! 1. The calls of the sink add up to the server's state at the revision that was reported last.
//! 2. No request uses `resourceVersion=0`. A list asks for the last seen revision or newer, and then an older answer is
//!    rejected. Or it asks without a revision, which is a quorum read: that is the newest state and replaces the store, even
//!    if its revision is lower, as after a restored backup. A watch from a revision that the server no longer has can be
//!    silent until then; [`ReflectorOptions::relist`] bounds that.
//! 3. The next list detects objects that were deleted while no watch was open; the sink is notified of the end of each list.
//! 4. An error is a named state that ends when its cause ends; the reflector never gives up.
//! 5. The reflector honours a server's `Retry-After`, at most two minutes at a time. It also backs off if watches end without
//!    effect: only a watch that lasted, or reported a newer revision, is reopened without a delay.
//! 6. One object that cannot be decoded is reported, and all others are processed. A line that is no event is one error,
//!    however long it is.
//! 7. A panic is an error like any other: the step in progress is abandoned, and a relist follows.
//! 8. A kind that the server does not have is not requested while it is known to be absent. Its objects are removed, and it is
//!    requested immediately when it is installed. A 404 removes no objects while the kind is known to be present, and a 404
//!    that no API server writes says nothing about the kind. If no other source knows, three answers in a row count.
//! 9. Only a list deletes the objects that it does not contain: an answer with `items`, of this kind, and with a revision if
//!    the server gave one before. Any other answer is an error.

mod backoff;
mod listing;
mod options;
mod request;
#[cfg(test)]
mod tests;
mod watch_error;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use kube::client::Client;
use steersman_core::{Clock, MonotonicTime, Presence, Random};

pub use options::ReflectorOptions;
pub use watch_error::WatchError;

use crate::{
    InformerContext, Resource, Revision, Scope,
    health::Reporter,
    liveness::{Delay, Liveness, ReflectorId},
    object::{InvalidObject, Object},
    presence_source::PresenceSource,
    response::Response,
    store::ReadConsistency,
    wire::lines::{Lines, WatchEvent},
};
use backoff::Backoff;

/// Maximum size of an object. No object of a real server is longer.
const OBJECT_LIMIT: usize = 64 << 20;

/// A watch that ends sooner than this and reported nothing new counts as a failure. So a server that closes each watch
/// immediately is not asked without a delay, whatever it sends before.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Number of 404 answers in a row that make a known kind absent, if no other source knows.
const NOT_FOUND_TRIED: u32 = 3;

/// Number of watches in a row that end with a server error before a relist: the server can be failing because of the revision
/// itself.
const WATCHES_TRIED: u32 = 3;

/// Receives everything that the reflector learns: the single writer of a store. It is the first to hold the objects.
pub(crate) trait Sink: Send {
    /// Begins a list. Objects that it does not contain were deleted.
    fn begin(&mut self, consistency: ReadConsistency);
    /// Adds an object of the list.
    fn listed(&mut self, object: Arc<Object>);
    /// Reports an object deleted during the list, with its last state. This does not advance the revision.
    fn unlisted(&mut self, object: Arc<Object>);
    /// Completes the list, which has this revision.
    fn end(&mut self, revision: &Revision);
    /// Abandons a list that broke off.
    fn abandon(&mut self);
    /// Reports a created or updated object. Returns false if the store has a newer state of it: the server moved backwards.
    fn changed(&mut self, object: Arc<Object>) -> bool;
    /// Reports a deleted object with its last state. Returns false as [`changed`](Self::changed) does.
    fn deleted(&mut self, object: Arc<Object>) -> bool;
    /// Reports that no other change happened up to this revision.
    fn progressed(&mut self, revision: &Revision);
    /// Reports an object that cannot be decoded.
    fn invalid(&mut self, error: &InvalidObject);
}

/// The objects that one reflector lists and watches.
pub(crate) struct Watched {
    pub(crate) resource: Resource,
    pub(crate) scope: Scope,
    /// One namespace of the scope; empty for all.
    pub(crate) namespace: String,
}

pub(crate) struct Reflector<S> {
    client: Client,
    resource: Resource,
    scope: Scope,
    namespace: String,
    options: ReflectorOptions,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    known: PresenceSource,
    sink: S,
    health: Reporter,
    backoff: Backoff,
    /// Reports when the server answers other requests.
    liveness: Liveness,
    token: ReflectorId,
    /// The newest revision reported to the sink.
    revision: Revision,
    /// True if lists are streamed. Becomes false when the server does not support that.
    streaming: bool,
    /// Number of streamed lists that broke since the last complete list.
    broken_streams: u32,
    /// True if the next list asks for pages.
    paging: bool,
    /// Number of watches in a row from the last revision that failed with a server error.
    failed_watches: u32,
    /// Number of answers in a row that the server does not have the kind.
    not_found: u32,
}

/// An open watch.
#[derive(Debug)]
struct Stream {
    response: Response,
    lines: Lines,
}

impl<S: Sink> Reflector<S> {
    pub(crate) fn new(
        context: &InformerContext,
        watched: Watched,
        options: ReflectorOptions,
        sink: S,
        health: Reporter,
    ) -> Self {
        let (streaming, paging) = (options.is_streaming(), true);
        let backoff = Backoff::new(Arc::clone(&context.random));
        let revision = Revision::new("");
        Self {
            client: context.client.clone(),
            resource: watched.resource,
            scope: watched.scope,
            namespace: watched.namespace,
            options,
            clock: Arc::clone(&context.clock),
            random: Arc::clone(&context.random),
            known: context.known.clone(),
            sink,
            health,
            backoff,
            liveness: context.liveness.clone(),
            token: ReflectorId::default(),
            revision,
            streaming,
            broken_streams: 0,
            paging,
            failed_watches: 0,
            not_found: 0,
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut stream = None;
        let mut needs_list = true;
        let mut relist_at = None;
        loop {
            // Read before the request: the answer can be out of date when it arrives.
            let presence = self.known.presence(&self.resource);
            let step = async {
                if needs_list {
                    let listed = self.synchronise().await;
                    relist_at = self.next_relist();
                    stream = listed?;
                    needs_list = false;
                    self.failed_watches = 0;
                } else if let Some(interval) = self.options.poll_interval() {
                    self.clock.sleep_until(self.clock.now() + interval).await;
                    needs_list = true;
                } else {
                    let watched = self.watch(stream.take(), relist_at).await;
                    // A watch without a known revision misses deletions in between.
                    needs_list = !self.revision.is_known() || self.failed_watches >= WATCHES_TRIED;
                    needs_list |= watched?;
                }
                Ok(())
            };
            let result = AssertUnwindSafe(step).catch_unwind().await;
            if let Err(error) = result.unwrap_or_else(|_| Err(self.panicked())) {
                // After any other error the history can have a gap, so a 410 (`Expired`) relists. In these three cases nothing
                // arrived at all.
                needs_list |= !matches!(
                    error,
                    WatchError::Unreachable { .. }
                        | WatchError::ServerError { .. }
                        | WatchError::IdleTimeout { .. }
                );
                self.wait_out(error, presence).await;
            }
        }
    }

    /// Passes on changes until the watch ends, or until `relist_at`. Returns true if a relist is due.
    async fn watch(
        &mut self,
        stream: Option<Stream>,
        relist_at: Option<MonotonicTime>,
    ) -> Result<bool, WatchError> {
        let clock = Arc::clone(&self.clock);
        let due = async {
            match relist_at {
                Some(moment) => clock.sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = self.follow(stream) => result.map(|()| false),
            () = due => Ok(true),
        }
    }

    fn panicked(&mut self) -> WatchError {
        let resource = &self.resource;
        tracing::error!(%resource, "panicked while processing a response; relisting");
        self.sink.abandon();
        WatchError::Panicked
    }

    fn next_relist(&self) -> Option<MonotonicTime> {
        let interval = self.options.relist_after(self.random.fraction());
        interval.map(|interval| self.clock.now() + interval)
    }

    /// Waits until the next attempt is due. `presence` is the known presence of the kind before the request.
    async fn wait_out(&mut self, error: WatchError, presence: Presence) {
        let now = self.clock.now();
        let is_absent = error == WatchError::NotInstalled;
        self.not_found = if is_absent { self.not_found + 1 } else { 0 };
        // The known presence outweighs one answer. If it is unknown, one answer is not enough once the kind was found: a proxy
        // can have written it.
        let is_agreed = is_absent
            && match self.known.presence(&self.resource) {
                Presence::Present => false,
                Presence::Absent => true,
                Presence::Unknown => !self.revision.is_known() || self.not_found >= NOT_FOUND_TRIED,
            };
        let resource = &self.resource;
        if matches!(error, WatchError::StaleResponse { .. }) {
            // Only a paged list is a quorum read, which shows the newest state.
            self.broken_streams = listing::STREAMS_TRIED;
        }
        // Expired history is no failure: the first time, retry without delay.
        let at_once = matches!(error, WatchError::Expired { .. }) && self.backoff.is_fresh(now);
        // A kind that existed and is reported absent can still exist: a proxy can have written the answer.
        let is_doubtful = is_absent && (self.revision.is_known() || !is_agreed);
        let can_pass = error.can_pass_with_an_outage() || is_doubtful;
        let delay = self.backoff.failed(now, &error, can_pass);
        tracing::debug!(%resource, %error, delay = ?delay.full, "list or watch failed; retrying");
        self.health.update(|health| {
            health.error = Some(Arc::new(error));
            health.absent = is_agreed;
        });
        let is_early = if is_absent {
            self.until_there(delay, presence).await
        } else if !at_once {
            let wait = self.liveness.wait(&self.token, delay, &self.clock, &self.random);
            wait.await
        } else {
            false
        };
        if is_early {
            self.backoff.tries_early();
        }
    }

    /// Waits for this delay, and longer while the kind is known to be absent, but returns when it becomes present. Returns true
    /// if the server answered another request meanwhile.
    async fn until_there(&mut self, delay: Delay, mut before: Presence) -> bool {
        let due = self.liveness.wait(&self.token, delay, &self.clock, &self.random);
        let mut due = std::pin::pin!(due);
        let mut has_objects = self.revision.is_known();
        loop {
            let now = self.known.look(&self.resource);
            if now == Presence::Present && before != now {
                return false;
            }
            if now == Presence::Absent {
                self.health.update(|health| health.absent = true);
                if std::mem::take(&mut has_objects) {
                    // The server deleted the objects with the kind.
                    self.sink.begin(ReadConsistency::Quorum);
                    self.sink.end(&self.revision);
                }
            }
            before = now;
            tokio::select! {
                biased;
                () = self.known.changed() => {}
                is_early = &mut due, if now != Presence::Absent => return is_early,
            }
        }
    }

    /// Passes on changes until the watch ends. The next watch resumes from the last revision, so a normal end is no error.
    async fn follow(&mut self, stream: Option<Stream>) -> Result<(), WatchError> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                let from = ("resourceVersion", self.revision.as_str());
                let from = self.revision.is_known().then_some(from);
                let query = self.watch_query(from.as_slice());
                let opened = self.open(&query, self.options.idle_limit()).await;
                // A busy or unreachable server has not looked at the revision.
                let has_failed = matches!(opened, Err(WatchError::ServerError { code: 500, .. }));
                self.failed_watches += u32::from(has_failed);
                opened?
            }
        };
        self.health.update(|health| health.error = None);
        let (start, before) = (self.clock.now(), self.revision.clone());
        loop {
            let ended = match stream.response.chunk().await {
                Ok(Some(chunk)) => {
                    self.take_events(&mut stream, &chunk)?;
                    continue;
                }
                Ok(None) => WatchError::Unreachable {
                    reason: "the server closed the watch immediately, without a newer revision".to_owned(),
                },
                Err(error @ WatchError::Unreachable { .. }) => error,
                // Report an error that a server does not cause by itself, however long the watch worked before.
                Err(error) => return Err(error),
            };
            // A watch that broke after it worked resumes immediately; a watch that never worked is a failure.
            let lasted = self.clock.now().saturating_since(start);
            // If a server's revisions cannot be compared, a different revision counts as new.
            let is_news = !before.reached(&self.revision);
            return if is_news || lasted >= SHORT_WATCH {
                Ok(())
            } else {
                Err(ended)
            };
        }
    }

    fn take_events(&mut self, stream: &mut Stream, chunk: &[u8]) -> Result<(), WatchError> {
        let (sink, revision) = (&mut self.sink, &mut self.revision);
        let (before, mut error) = (revision.clone(), None);
        let pushed = stream.lines.push(chunk, |line| {
            if error.is_none() {
                error = apply(sink, revision, WatchEvent::parse(line)).err();
            }
        });
        if *revision != before {
            self.failed_watches = 0;
        }
        match error {
            Some(error) => {
                self.failed_watches += 1;
                Err(error)
            }
            None => pushed.map_err(|error| WatchError::InvalidResponse {
                reason: error.to_string(),
            }),
        }
    }

    /// Records that the server has the kind. Handlers of its objects must not read that it is absent.
    fn found(&mut self) {
        self.not_found = 0;
        self.health.update(|health| {
            health.absent = false;
            let error = health.error.take();
            health.error = error.filter(|error| **error != WatchError::NotInstalled);
        });
    }

    async fn open(&mut self, query: &str, idle: Duration) -> Result<Stream, WatchError> {
        self.health.update(|health| {
            health.watch_restarts += u64::from(health.watches > 0);
            health.watches += 1;
        });
        let request = self.request(query, false)?;
        let response = Response::to(
            &self.client,
            request,
            &self.clock,
            idle.min(self.options.answer_limit()),
        )
        .await;
        let mut response = response?;
        self.found();
        response.set_idle(idle);
        Ok(Stream {
            response,
            lines: Lines::new(OBJECT_LIMIT),
        })
    }
}

fn behind(seen: &Revision, sent: Revision) -> WatchError {
    WatchError::StaleResponse {
        sent,
        seen: seen.clone(),
    }
}

/// Passes one event after the initial events to the sink, and advances the revision.
fn apply(sink: &mut impl Sink, revision: &mut Revision, event: WatchEvent) -> Result<(), WatchError> {
    let reached = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let reached = object.revision();
            if !sink.changed(object) {
                return Err(behind(revision, reached));
            }
            reached
        }
        WatchEvent::Deleted(object) => {
            let reached = object.revision();
            if !sink.deleted(object) {
                return Err(behind(revision, reached));
            }
            reached
        }
        WatchEvent::Bookmark {
            revision: reached, ..
        } => {
            listing::check(revision, &reached)?;
            sink.progressed(&reached);
            reached
        }
        WatchEvent::Invalid(error) => {
            sink.invalid(&error);
            return Ok(());
        }
        WatchEvent::Error(status) => return Err(WatchError::of_status(&status)),
        WatchEvent::Malformed { reason } => return Err(WatchError::InvalidResponse { reason }),
        WatchEvent::Nothing => return Ok(()),
    };
    // An object without a revision does not show how far the watch is.
    if reached.is_known() {
        *revision = reached;
    }
    Ok(())
}
