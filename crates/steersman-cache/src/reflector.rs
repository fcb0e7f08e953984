// SPDX-License-Identifier: Apache-2.0
//! Lists and watches one resource in one scope.
//!
//! # Guarantees
//! 1. What the sink was told adds up to the server's state at the revision that it was told last.
//! 2. A list never goes back behind a revision that was seen, and no request says `resourceVersion=0`.
//! 3. An object that went while nobody watched is found by the next list; the sink is told the end of each list.
//! 4. Trouble is a state with a name, and ends when it is over; the reflector never gives up.
//! 5. A server that asks for patience gets it, two minutes at a time at most, and so does one whose watches come to nothing:
//!    only one that lasted, or told of a newer revision, is opened again without a pause.
//! 6. One object that cannot be read is reported, and everything else goes on. What is no event at all is trouble, once,
//!    however long it is.
//! 7. A panic is trouble as any other: what was under way is given up, and a list makes up for it.
//! 8. A kind that the server does not have is not asked for again while it is known to be absent. It has no objects then,
//!    and is asked for at once when it is there.

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
use steersman_core::{Clock, Moment, Presence, Random};

pub use options::ReflectorOptions;
pub use trouble::Trouble;

use crate::{
    Resource, Revision, Scope,
    health::Reporter,
    known::Known,
    object::{InvalidObject, Object},
    response::Response,
    wire::lines::{Event, Lines},
};
use backoff::Backoff;

/// No object of a real server is longer.
const OBJECT_LIMIT: usize = 64 << 20;

/// A watch that ends sooner than this and told nothing new counts as a failure, so that a server which ends each watch
/// at once is not asked without a pause, whatever it says before.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Who is told what the reflector learns: the one writer of a store. Nobody else has the objects yet.
pub(crate) trait Sink: Send {
    /// A list begins. What is not in it is gone.
    fn begin(&mut self);
    /// An object of the list.
    fn listed(&mut self, object: Arc<Object>);
    /// The list was whole, and is of this revision.
    fn end(&mut self, revision: &Revision);
    /// The list broke off: forget that it began.
    fn abandon(&mut self);
    /// An object is new or different.
    fn changed(&mut self, object: Arc<Object>);
    /// An object is gone; this was its last state.
    fn deleted(&mut self, object: Arc<Object>);
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
    /// The newest revision that the sink was told. Nothing older is ever asked for or taken.
    revision: Revision,
    /// Whether lists are streamed. It ends when the server says that it does not do that.
    streaming: bool,
    /// How many streamed lists broke since a list was complete.
    broken_streams: u32,
    /// Whether the next list asks for pages.
    paging: bool,
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
            revision,
            streaming,
            broken_streams: 0,
            paging,
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
                } else if let Some(interval) = self.options.poll_interval() {
                    self.clock.sleep_until(self.clock.now() + interval).await;
                    needs_list = true;
                } else {
                    let watched = self.watch(stream.take(), relist_at).await;
                    // A watch that cannot say from where it goes on does not tell of what went in between.
                    needs_list = !self.revision.is_known();
                    needs_list |= watched?;
                }
                Ok(())
            };
            let result = AssertUnwindSafe(step).catch_unwind().await;
            if let Err(trouble) = result.unwrap_or_else(|_| Err(self.panicked())) {
                // Whatever it was, the history may have a hole, except where nothing came at all.
                needs_list |= !matches!(
                    trouble,
                    Trouble::Unreachable { .. } | Trouble::Busy { .. } | Trouble::Silent { .. }
                );
                self.wait_out(trouble, presence).await;
            }
        }
    }

    /// Hands on changes until the watch ends, or a list is due at this moment, which it says.
    async fn watch(&mut self, stream: Option<Stream>, relist_at: Option<Moment>) -> Result<bool, Trouble> {
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

    fn panicked(&mut self) -> Trouble {
        let resource = &self.resource;
        tracing::error!(%resource, "something panicked over what the server sent; all of it is listed anew");
        self.sink.abandon();
        Trouble::Panicked
    }

    fn next_relist(&self) -> Option<Moment> {
        let interval = self.options.relist_after(self.random.fraction());
        interval.map(|interval| self.clock.now() + interval)
    }

    /// Waits until it is time to ask again. `presence` is what was known of the kind when the server was asked.
    async fn wait_out(&mut self, trouble: Trouble, presence: Presence) {
        let now = self.clock.now();
        let resource = &self.resource;
        // History that ran out is nobody's fault: the first time it costs no waiting.
        let at_once = matches!(trouble, Trouble::Expired { .. }) && self.backoff.is_fresh(now);
        let delay = self.backoff.failed(now, trouble.retry_after());
        tracing::debug!(%resource, %trouble, ?delay, "a reflector is in trouble");
        let is_absent = trouble == Trouble::Absent;
        self.health
            .update(|health| health.trouble = Some(Arc::new(trouble)));
        if is_absent {
            self.until_there(now + delay, presence).await;
        } else if !at_once {
            self.clock.sleep_until(now + delay).await;
        }
    }

    /// Waits until this moment, and longer while the kind is known to be absent; but not once it is known to be there.
    async fn until_there(&mut self, moment: Moment, mut before: Presence) {
        let mut due = self.clock.sleep_until(moment);
        let mut has_objects = self.revision.is_known();
        loop {
            let now = self.known.look(&self.resource);
            if now == Presence::Present && before != now {
                return;
            }
            if now == Presence::Absent && std::mem::take(&mut has_objects) {
                // They have gone with the kind.
                self.sink.begin();
                self.sink.end(&self.revision);
            }
            before = now;
            tokio::select! {
                biased;
                () = self.known.changed() => {}
                () = &mut due, if now != Presence::Absent => return,
            }
        }
    }

    /// Hands on changes until the watch ends. It goes on from the last revision, so an end in good order is no trouble.
    async fn follow(&mut self, stream: Option<Stream>) -> Result<(), Trouble> {
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                let from = ("resourceVersion", self.revision.as_str());
                let from = self.revision.is_known().then_some(from);
                let query = self.watch_query(from.as_slice());
                self.open(&query, self.options.idle_limit()).await?
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
                Ok(None) => Trouble::Unreachable {
                    reason: "the server ended the watch at once, and it told nothing new".to_owned(),
                },
                Err(trouble @ Trouble::Unreachable { .. }) => trouble,
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

    fn take_events(&mut self, stream: &mut Stream, chunk: &[u8]) -> Result<(), Trouble> {
        let (sink, revision) = (&mut self.sink, &mut self.revision);
        let mut trouble = None;
        let pushed = stream.lines.push(chunk, |line| {
            if trouble.is_none() {
                trouble = apply(sink, revision, Event::parse(line)).err();
            }
        });
        match trouble {
            Some(trouble) => Err(trouble),
            None => pushed.map_err(|error| Trouble::Undecodable {
                reason: error.to_string(),
            }),
        }
    }

    /// The server has the kind. Those who hear of its objects must not read that it has not.
    fn found(&self) {
        self.health.update(|health| {
            let trouble = health.trouble.take();
            health.trouble = trouble.filter(|trouble| **trouble != Trouble::Absent);
        });
    }

    async fn open(&mut self, query: &str, idle: Duration) -> Result<Stream, Trouble> {
        self.health.update(|health| {
            health.watch_restarts += u64::from(health.watches > 0);
            health.watches += 1;
        });
        let request = self.request(query, false);
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

/// Tells the sink of one event behind the initial ones, and notes how far that goes.
fn apply(sink: &mut impl Sink, revision: &mut Revision, event: Event) -> Result<(), Trouble> {
    let reached = match event {
        Event::Added(object) | Event::Modified(object) => {
            let reached = object.revision();
            sink.changed(object);
            reached
        }
        Event::Deleted(object) => {
            let reached = object.revision();
            sink.deleted(object);
            reached
        }
        Event::Bookmark {
            revision: reached, ..
        } => {
            sink.progressed(&reached);
            reached
        }
        Event::Invalid(error) => {
            sink.invalid(&error);
            return Ok(());
        }
        Event::Error(status) => return Err(Trouble::of_status(&status)),
        Event::Rubbish { reason } => return Err(Trouble::Undecodable { reason }),
        Event::Nothing => return Ok(()),
    };
    // An object without a revision says nothing about how far the watch has got.
    if reached.is_known() {
        *revision = reached;
    }
    Ok(())
}
