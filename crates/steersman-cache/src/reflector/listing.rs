// SPDX-License-Identifier: Apache-2.0
//! The whole state of a resource: as a stream where the server has that, otherwise in pages.
//!
//! Only a server that says that it does not stream is never asked to again. Whatever else keeps a streamed list from coming
//! about, such as a load balancer in trouble or a list that is slow, is taken to pass: pages are tried, and the list after
//! one that was complete is asked for as a stream again.

use std::sync::Arc;

use super::{OBJECT_LIMIT, Reflector, Sink, Stream, apply, trouble::WatchError};
use crate::{
    Revision,
    object::{InvalidObject, Object},
    response::{Idle, Response},
    store::Came,
    wire::{
        lines::Event,
        list::{ListMetadata, ListSplitter},
    },
};

/// After so many streamed lists in a row that broke, pages are tried.
pub(super) const STREAMS_TRIED: u32 = 3;

/// So many times as long as it may be silent, a streamed list may take in all.
const WHOLE_STREAM: u32 = 30;

/// Why a streamed list did not come about.
enum NoStream {
    /// The server says that it does not do that.
    Unsupported,
    /// The end of the list did not come in time. The server may ignore what was asked for, or be slow.
    Endless,
    /// It would not have come about in pages either.
    NoList(WatchError),
    Trouble(WatchError),
}

impl From<WatchError> for NoStream {
    fn from(trouble: WatchError) -> Self {
        Self::Trouble(trouble)
    }
}

impl<S: Sink> Reflector<S> {
    /// Hands on a whole list, by whichever way the server has. A streamed one goes on as a watch.
    pub(super) async fn synchronise(&mut self) -> Result<Option<Stream>, WatchError> {
        self.health.update(|health| {
            health.relists += u64::from(health.synced);
            health.lists += 1;
        });
        let result = if self.streaming && self.broken_streams < STREAMS_TRIED {
            // It is asked for from the last revision on, if there is one.
            let came = if self.revision.is_known() {
                Came::InOrder
            } else {
                Came::Newest
            };
            self.sink.begin(came);
            self.stream_list().await
        } else {
            self.sink.begin(Came::Newest);
            self.page_list().await.map(|()| None)
        };
        match &result {
            Ok(_) => {
                self.broken_streams = 0;
                self.health.update(|health| {
                    health.synced = true;
                    health.trouble = None;
                });
            }
            Err(_) => self.sink.abandon(),
        }
        result
    }

    /// A watch that begins with the state: the bookmark at its end makes it a list.
    async fn stream_list(&mut self) -> Result<Option<Stream>, WatchError> {
        match self.try_stream_list().await {
            Ok(stream) => Ok(Some(stream)),
            Err(NoStream::NoList(trouble)) => Err(trouble),
            Err(NoStream::Trouble(trouble)) => {
                self.broken_streams += 1;
                Err(trouble)
            }
            Err(NoStream::Unsupported) => {
                let resource = &self.resource;
                tracing::debug!(%resource, "the server streams no lists, so they come in pages");
                self.streaming = false;
                self.page_instead().await
            }
            Err(NoStream::Endless) => {
                let resource = &self.resource;
                tracing::debug!(%resource, "a streamed list does not come to its end, so this one comes in pages");
                // Should the pages fail, they are what is tried next.
                self.broken_streams = STREAMS_TRIED;
                self.page_instead().await
            }
        }
    }

    /// A list in pages, after one that was streamed did not come about.
    async fn page_instead(&mut self) -> Result<Option<Stream>, WatchError> {
        self.sink.abandon();
        self.sink.begin(Came::Newest);
        self.page_list().await.map(|()| None)
    }

    async fn try_stream_list(&mut self) -> Result<Stream, NoStream> {
        let initial = [
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
        ];
        let floor = self
            .revision
            .is_known()
            .then(|| ("resourceVersion", self.revision.as_str()));
        let query = self.watch_query(&initial.into_iter().chain(floor).collect::<Vec<_>>());
        let mut stream = match self.open(&query, self.options.answer_limit()).await {
            // How servers that do not have it say so: they refuse the parameters, or all watches.
            Err(WatchError::Refused {
                code: 400 | 405 | 422,
                ..
            }) => return Err(NoStream::Unsupported),
            Err(
                trouble @ (WatchError::Absent
                | WatchError::Forbidden { .. }
                | WatchError::Unreachable { .. }
                | WatchError::Busy { code: 429 | 503, .. }),
            ) => return Err(NoStream::NoList(trouble)),
            opened => opened?,
        };
        // An aggregated server may take the parameters and ignore them: then there are events, and never the bookmark.
        let limit = self.options.initial_events_limit();
        let mut initial_events = Idle::new(&self.clock, limit);
        let mut whole = Idle::new(&self.clock, limit.saturating_mul(WHOLE_STREAM));
        loop {
            let chunk = tokio::select! {
                biased;
                chunk = stream.response.chunk() => chunk,
                trouble = initial_events.over() => Err(trouble),
                trouble = whole.over() => Err(trouble),
            };
            let chunk = match chunk {
                Err(WatchError::Silent { .. }) => return Err(NoStream::Endless),
                Ok(None) => {
                    let reason = "the server ended a streamed list in the middle".to_owned();
                    return Err(WatchError::Unreachable { reason }.into());
                }
                chunk => chunk?.unwrap_or_default(),
            };
            let (sink, floor) = (&mut self.sink, &self.revision);
            let (mut end, mut taken): (Option<Revision>, _) = (None, Ok(()));
            let pushed = stream.lines.push(&chunk, |line| {
                if taken.is_ok() {
                    let event = Event::parse(line);
                    if matches!(event, Event::Added(_)) {
                        initial_events.hear();
                    }
                    taken = match &mut end {
                        Some(revision) => apply(sink, revision, event),
                        None => take_initial(sink, floor, event).map(|revision| end = revision),
                    };
                }
            });
            if let Some(revision) = end {
                self.revision = revision;
                stream.response.set_idle(self.options.idle_limit());
                taken?;
                return Ok(stream);
            }
            taken?;
            pushed.map_err(|error| WatchError::Undecodable {
                reason: error.to_string(),
            })?;
        }
    }

    /// A list in pages, each read as it comes.
    async fn page_list(&mut self) -> Result<(), WatchError> {
        let (mut token, mut floor) = (String::new(), self.revision.clone());
        loop {
            let metadata = match self.page(&token).await {
                Ok(metadata) => metadata,
                // The rest of the list is too old by now. The next one is asked for in one piece, which cannot expire.
                Err(trouble @ WatchError::Expired { .. }) if !token.is_empty() => {
                    self.paging = false;
                    return Err(trouble);
                }
                Err(trouble) => return Err(trouble),
            };
            let revision = Revision::new(&metadata.resource_version);
            check_known(&floor, &revision)?;
            if metadata.continue_token.is_empty() {
                self.sink.end(&revision);
                self.revision = revision;
                self.paging = true;
                return Ok(());
            }
            // What follows on a page with a revision has one, too.
            (token, floor) = (metadata.continue_token, revision);
        }
    }

    async fn page(&mut self, token: &str) -> Result<ListMetadata, WatchError> {
        let limit = self
            .options
            .page_limit()
            .filter(|_| self.paging)
            .map(|size| size.to_string());
        let limit = limit.as_deref().map(|size| ("limit", size));
        let token = Some(("continue", token)).filter(|(_, token)| !token.is_empty());
        let query = self.list_query(&limit.into_iter().chain(token).collect::<Vec<_>>());
        let request = self.request(&query, true)?;
        let mut response =
            Response::to(&self.client, request, &self.clock, self.options.answer_limit()).await?;
        self.found();
        let mut splitter = ListSplitter::new(OBJECT_LIMIT).of(&self.resource);
        let sink = &mut self.sink;
        let mut item = |item: Result<Arc<Object>, InvalidObject>| match item {
            Ok(object) => sink.listed(object),
            Err(error) => sink.invalid(&error),
        };
        while let Some(chunk) = response.chunk().await? {
            splitter.push(&chunk, &mut item)?;
        }
        Ok(splitter.finish(&mut item)?)
    }
}

/// A state without a revision is not taken where the server gives them: some polled APIs, such as metrics.k8s.io, never do.
fn check_known(floor: &Revision, revision: &Revision) -> Result<(), WatchError> {
    if floor.is_known() && !revision.is_known() {
        let reason = "it has no resourceVersion, though the server gave one before".to_owned();
        return Err(WatchError::Undecodable { reason });
    }
    Ok(())
}

/// Rejects a list or a bookmark that is older than the revision that was asked for.
pub(super) fn check(floor: &Revision, revision: &Revision) -> Result<(), WatchError> {
    match revision.compare(floor) {
        Some(std::cmp::Ordering::Less) => Err(WatchError::Behind {
            told: revision.clone(),
            seen: floor.clone(),
        }),
        _ => Ok(()),
    }
}

/// Tells the sink of one event of a streamed list. The revision is there when it is the last one.
fn take_initial(
    sink: &mut impl Sink,
    floor: &Revision,
    event: Event,
) -> Result<Option<Revision>, WatchError> {
    match event {
        Event::Added(object) | Event::Modified(object) => sink.listed(object),
        Event::Deleted(object) => sink.unlisted(object),
        Event::Bookmark {
            revision,
            ends_initial_events: true,
        } => {
            check_known(floor, &revision)?;
            check(floor, &revision)?;
            sink.end(&revision);
            return Ok(Some(revision));
        }
        // Initial events come in no order of revisions, so nothing has progressed before their end.
        Event::Bookmark { .. } => {}
        Event::Invalid(error) => sink.invalid(&error),
        Event::Error(status) => return Err(WatchError::of_status(&status)),
        Event::Rubbish { reason } => return Err(WatchError::Undecodable { reason }),
        Event::Nothing => {}
    }
    Ok(None)
}
