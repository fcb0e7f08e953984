// SPDX-License-Identifier: Apache-2.0
//! Lists and watches one resource in one scope.
//!
//! # Guarantees
//! 1. What the sink was told adds up to the server's state at the revision that it was told last.
//! 2. No request says `resourceVersion=0`. A list is asked for from the revision on that was seen last, and then an older one
//!    is not taken; or without a revision, which is a quorum read: that is the newest state and replaces what is there, also
//!    if its revision is lower, as after a restored backup. A watch from a revision that the server does not have any more
//!    can be silent until then; [`ReflectorOptions::relist`] bounds that.
//! 3. An object that went while nobody watched is found by the next list; the sink is told the end of each list.
//! 4. Trouble is a state with a name, and ends when it is over; the reflector never gives up.
//! 5. A server that asks for patience gets it, two minutes at a time at most, and so does one whose watches come to nothing:
//!    only one that lasted, or told of a newer revision, is opened again without a pause.
//! 6. One object that cannot be read is reported, and everything else goes on. What is no event at all is trouble, once,
//!    however long it is.
//! 7. A panic is trouble as any other: what was under way is given up, and a list makes up for it.
//! 8. A kind that the server does not have is not asked for again while it is known to be absent. It has no objects then,
//!    and is asked for at once when it is there. A 404 takes no objects from readers while the kind is known to be present,
//!    and one that no API server writes says nothing about the kind. If nobody else knows, three answers in a row count.
//! 9. Only a list deletes what it does not show: an answer with `items`, of this kind, and with a revision if the server
//!    gave one before. Any other answer is trouble.

mod backoff;
mod listing;
mod options;
mod request;
#[cfg(test)]
mod tests;
mod trouble;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use kube::client::Client;
use steersman_core::{Clock, MonotonicTime, Presence, Random};

pub use options::ReflectorOptions;
pub use trouble::WatchError;

use crate::{
    Resource, Revision, Scope,
    health::Reporter,
    known::Known,
    liveness::{Liveness, Token},
    object::{InvalidObject, Object},
    response::Response,
    store::Came,
    wire::lines::{Event, Lines},
};
use backoff::Backoff;

/// No object of a real server is longer.
const OBJECT_LIMIT: usize = 64 << 20;

/// A watch that ends sooner than this and told nothing new counts as a failure, so that a server which ends each watch
/// at once is not asked without a pause, whatever it says before.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// So many answers in a row have to say that a kind is absent which was there, if nobody else knows.
const NOT_FOUND_TRIED: u32 = 3;

/// After so many watches in a row that the server ended with an error, the resource is listed: the revision itself may be
/// what the server fails over.
const WATCHES_TRIED: u32 = 3;

/// Who is told what the reflector learns: the one writer of a store. Nobody else has the objects yet.
pub(crate) trait Sink: Send {
    /// A list begins. What is not in it is gone.
    fn begin(&mut self, came: Came);
    /// An object of the list.
    fn listed(&mut self, object: Arc<Object>);
    /// An object was deleted while the list came, which says nothing about how far that has got; this was its last state.
    fn unlisted(&mut self, object: Arc<Object>);
    /// The list was whole, and is of this revision.
    fn end(&mut self, revision: &Revision);
    /// The list broke off: forget that it began.
    fn abandon(&mut self);
    /// An object is new or different. Returns false if the store has a newer state of it: the server went back.
    fn changed(&mut self, object: Arc<Object>) -> bool;
    /// An object is gone; this was its last state. Returns false as [`changed`](Self::changed) does.
    fn deleted(&mut self, object: Arc<Object>) -> bool;
    /// Nothing else happened up to this revision.
    fn progressed(&mut self, revision: &Revision);
    /// An object cannot be read.
    fn invalid(&mut self, error: &InvalidObject);
}

pub(crate) struct Reflector<S> {
    client: Client,
    resource: Resource,
    scope: Scope,
    /// The one of the scope's namespaces that this one is for; empty for all.
    namespace: String,
    options: ReflectorOptions,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    known: Known,
    sink: S,
    health: Reporter,
    backoff: Backoff,
    /// Says when the server answers others.
    liveness: Liveness,
    token: Token,
    /// The newest revision that the sink was told.
    revision: Revision,
    /// Whether lists are streamed. It ends when the server says that it does not do that.
    streaming: bool,
    /// How many streamed lists broke since a list was complete.
    broken_streams: u32,
    /// Whether the next list asks for pages.
    paging: bool,
    /// How many watches from the last revision failed with an error of the server, one after the other.
    failed_watches: u32,
    /// How many answers in a row said that the server does not have the kind.
    not_found: u32,
}

/// A watch that is under way.
#[derive(Debug)]
struct Stream {
    response: Response,
    lines: Lines,
}

impl<S: Sink> Reflector<S> {
    pub(crate) fn new(
        client: Client,
        (resource, scope, namespace): (Resource, Scope, &str),
        options: ReflectorOptions,
        (clock, random, known): (Arc<dyn Clock>, Arc<Random>, Known),
        sink: S,
        health: Reporter,
    ) -> Self {
        let (streaming, paging) = (options.is_streaming(), true);
        let backoff = Backoff::new(Arc::clone(&random));
        let revision = Revision::new("");
        Self {
            client,
            resource,
            scope,
            namespace: namespace.to_owned(),
            options,
            clock,
            random,
            known,
            sink,
            health,
            backoff,
            liveness: Liveness::default(),
            token: Token::default(),
            revision,
            streaming,
            broken_streams: 0,
            paging,
            failed_watches: 0,
            not_found: 0,
        }
    }

    /// The same, which hears when the server answers others.
    pub(crate) fn sharing(self, liveness: &Liveness) -> Self {
        Self {
            liveness: liveness.clone(),
            ..self
        }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut stream = None;
        let mut needs_list = true;
        let mut relist_at = None;
        loop {
            // Before anything is asked: what the server says then may be out of date when it is heard.
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
                    // A watch that cannot say from where it goes on does not tell of what went in between.
                    needs_list = !self.revision.is_known() || self.failed_watches >= WATCHES_TRIED;
                    needs_list |= watched?;
                }
                Ok(())
            };
            let result = AssertUnwindSafe(step).catch_unwind().await;
            if let Err(trouble) = result.unwrap_or_else(|_| Err(self.panicked())) {
                // Whatever it was, the history may have a hole, except where nothing came at all.
                needs_list |= !matches!(
                    trouble,
                    WatchError::Unreachable { .. } | WatchError::Busy { .. } | WatchError::Silent { .. }
                );
                self.wait_out(trouble, presence).await;
            }
        }
    }

    /// Hands on changes until the watch ends, or a list is due at this moment, which it says.
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
        tracing::error!(%resource, "something panicked over what the server sent; all of it is listed anew");
        self.sink.abandon();
        WatchError::Panicked
    }

    fn next_relist(&self) -> Option<MonotonicTime> {
        let interval = self.options.relist_after(self.random.fraction());
        interval.map(|interval| self.clock.now() + interval)
    }

    /// Waits until it is time to ask again. `presence` is what was known of the kind when the server was asked.
    async fn wait_out(&mut self, trouble: WatchError, presence: Presence) {
        let now = self.clock.now();
        let is_absent = trouble == WatchError::Absent;
        self.not_found = if is_absent { self.not_found + 1 } else { 0 };
        // Others know better than one answer. If they learn that it is absent, so does this one. Where nobody knows, one
        // answer is not enough once the kind was there: it may come from something in between.
        let is_agreed = is_absent
            && match self.known.presence(&self.resource) {
                Presence::Present => false,
                Presence::Absent => true,
                Presence::Unknown => !self.revision.is_known() || self.not_found >= NOT_FOUND_TRIED,
            };
        let resource = &self.resource;
        if matches!(trouble, WatchError::Behind { .. }) {
            // Only a list in pages is a quorum read, and says what there is.
            self.broken_streams = listing::STREAMS_TRIED;
        }
        // History that ran out is nobody's fault: the first time it costs no waiting.
        let at_once = matches!(trouble, WatchError::Expired { .. }) && self.backoff.is_fresh(now);
        // A kind that was there and is said to be absent may be there: the answer may come from something in between.
        let is_doubtful = is_absent && (self.revision.is_known() || !is_agreed);
        let can_pass = trouble.can_pass_with_an_outage() || is_doubtful;
        let (early, delay) = self.backoff.failed(now, &trouble, can_pass);
        tracing::debug!(%resource, %trouble, ?delay, "a reflector is in trouble");
        self.health.update(|health| {
            health.trouble = Some(Arc::new(trouble));
            health.absent = is_agreed;
        });
        let is_early = if is_absent {
            self.until_there((early, delay), presence).await
        } else if !at_once {
            let chance = (&self.clock, &*self.random);
            self.liveness.wait(&self.token, (early, delay), chance).await
        } else {
            false
        };
        if is_early {
            self.backoff.tries_early();
        }
    }

    /// Waits out these delays, and longer while the kind is known to be absent; but not once it is known to be there. Returns
    /// whether the server answered another request meanwhile.
    async fn until_there(&mut self, delays: (Duration, Duration), mut before: Presence) -> bool {
        let chance = (&self.clock, &*self.random);
        let mut due = std::pin::pin!(self.liveness.wait(&self.token, delays, chance));
        let mut has_objects = self.revision.is_known();
        loop {
            let now = self.known.look(&self.resource);
            if now == Presence::Present && before != now {
                return false;
            }
            if now == Presence::Absent {
                self.health.update(|health| health.absent = true);
                if std::mem::take(&mut has_objects) {
                    // They have gone with the kind.
                    self.sink.begin(Came::Newest);
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

    /// Hands on changes until the watch ends. It goes on from the last revision, so an end in good order is no trouble.
    async fn follow(&mut self, stream: Option<Stream>) -> Result<(), WatchError> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                let from = ("resourceVersion", self.revision.as_str());
                let from = self.revision.is_known().then_some(from);
                let query = self.watch_query(from.as_slice());
                let opened = self.open(&query, self.options.idle_limit()).await;
                // One that is busy or away has not looked at the revision.
                let has_failed = matches!(opened, Err(WatchError::Busy { code: 500, .. }));
                self.failed_watches += u32::from(has_failed);
                opened?
            }
        };
        self.health.update(|health| health.trouble = None);
        let (start, before) = (self.clock.now(), self.revision.clone());
        loop {
            let ended = match stream.response.chunk().await {
                Ok(Some(chunk)) => {
                    self.take_events(&mut stream, &chunk)?;
                    continue;
                }
                Ok(None) => WatchError::Unreachable {
                    reason: "the server ended the watch at once, and it told nothing new".to_owned(),
                },
                Err(trouble @ WatchError::Unreachable { .. }) => trouble,
                // Somebody should hear of what a server does not do by itself, however long it went well.
                Err(trouble) => return Err(trouble),
            };
            // A watch that broke after it worked goes on at once; one that never did is a failure.
            let lasted = self.clock.now().saturating_since(start);
            // Where a server's revisions cannot be compared, another one is news.
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
        let (before, mut trouble) = (revision.clone(), None);
        let pushed = stream.lines.push(chunk, |line| {
            if trouble.is_none() {
                trouble = apply(sink, revision, Event::parse(line)).err();
            }
        });
        if *revision != before {
            self.failed_watches = 0;
        }
        match trouble {
            Some(trouble) => {
                self.failed_watches += 1;
                Err(trouble)
            }
            None => pushed.map_err(|error| WatchError::Undecodable {
                reason: error.to_string(),
            }),
        }
    }

    /// The server has the kind. Those who hear of its objects must not read that it has not.
    fn found(&mut self) {
        self.not_found = 0;
        self.health.update(|health| {
            health.absent = false;
            let trouble = health.trouble.take();
            health.trouble = trouble.filter(|trouble| **trouble != WatchError::Absent);
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

fn behind(seen: &Revision, told: Revision) -> WatchError {
    WatchError::Behind {
        told,
        seen: seen.clone(),
    }
}

/// Tells the sink of one event behind the initial ones, and notes how far that goes.
fn apply(sink: &mut impl Sink, revision: &mut Revision, event: Event) -> Result<(), WatchError> {
    let reached = match event {
        Event::Added(object) | Event::Modified(object) => {
            let reached = object.revision();
            if !sink.changed(object) {
                return Err(behind(revision, reached));
            }
            reached
        }
        Event::Deleted(object) => {
            let reached = object.revision();
            if !sink.deleted(object) {
                return Err(behind(revision, reached));
            }
            reached
        }
        Event::Bookmark {
            revision: reached, ..
        } => {
            listing::check(revision, &reached)?;
            sink.progressed(&reached);
            reached
        }
        Event::Invalid(error) => {
            sink.invalid(&error);
            return Ok(());
        }
        Event::Error(status) => return Err(WatchError::of_status(&status)),
        Event::Rubbish { reason } => return Err(WatchError::Undecodable { reason }),
        Event::Nothing => return Ok(()),
    };
    // An object without a revision says nothing about how far the watch has got.
    if reached.is_known() {
        *revision = reached;
    }
    Ok(())
}
