// SPDX-License-Identifier: Apache-2.0
//! Lists of the whole state of a resource: streamed if the server supports that, otherwise paged.
//!
//! Only a server that rejects streaming is never asked for a stream again. Any other failure of a streamed list, such as a
//! failing load balancer or a slow list, counts as temporary: the reflector tries pages, and after a complete list asks for a
//! stream again.

use std::sync::Arc;

use super::{OBJECT_LIMIT, Reflector, Sink, Stream, apply, watch_error::WatchError};
use crate::{
    Revision,
    object::{InvalidObject, Object},
    response::{Idle, Response},
    store::ReadConsistency,
    wire::{
        lines::WatchEvent,
        list::{ListMetadata, ListSplitter},
    },
};

/// Number of broken streamed lists in a row before pages are tried.
pub(super) const STREAMS_TRIED: u32 = 3;

/// Maximum duration of a streamed list, as a multiple of its idle timeout.
const WHOLE_STREAM: u32 = 30;

/// Reason why a streamed list failed.
enum NoStream {
    /// The server does not support it.
    Unsupported,
    /// The end of the list did not arrive in time. The server ignores the parameters or is slow.
    Endless,
    /// A paged list would fail too.
    NoList(WatchError),
    Watch(WatchError),
}

impl From<WatchError> for NoStream {
    fn from(error: WatchError) -> Self {
        Self::Watch(error)
    }
}

impl<S: Sink> Reflector<S> {
    /// Passes on a whole list, streamed or paged. A streamed list continues as a watch.
    pub(super) async fn synchronise(&mut self) -> Result<Option<Stream>, WatchError> {
        self.health.update(|health| {
            health.relists += u64::from(health.synced);
            health.lists += 1;
        });
        let result = if self.streaming && self.broken_streams < STREAMS_TRIED {
            // It asks for the last revision or newer, if one is known.
            let consistency = if self.revision.is_known() {
                ReadConsistency::Watch
            } else {
                ReadConsistency::Quorum
            };
            self.sink.begin(consistency);
            self.stream_list().await
        } else {
            self.sink.begin(ReadConsistency::Quorum);
            self.page_list().await.map(|()| None)
        };
        match &result {
            Ok(_) => {
                self.broken_streams = 0;
                self.health.update(|health| {
                    health.synced = true;
                    health.error = None;
                });
            }
            Err(_) => self.sink.abandon(),
        }
        result
    }

    /// Opens a watch that begins with the state. The bookmark at the end of the initial events makes it a list.
    async fn stream_list(&mut self) -> Result<Option<Stream>, WatchError> {
        match self.try_stream_list().await {
            Ok(stream) => Ok(Some(stream)),
            Err(NoStream::NoList(error)) => Err(error),
            Err(NoStream::Watch(error)) => {
                self.broken_streams += 1;
                Err(error)
            }
            Err(NoStream::Unsupported) => {
                let resource = &self.resource;
                tracing::debug!(%resource, "server does not support streamed lists; using pages");
                self.streaming = false;
                self.page_instead().await
            }
            Err(NoStream::Endless) => {
                let resource = &self.resource;
                tracing::debug!(%resource, "streamed list timed out; using pages for this list");
                // If the pages fail, pages are tried again next.
                self.broken_streams = STREAMS_TRIED;
                self.page_instead().await
            }
        }
    }

    /// Lists in pages after a streamed list failed.
    async fn page_instead(&mut self) -> Result<Option<Stream>, WatchError> {
        self.sink.abandon();
        self.sink.begin(ReadConsistency::Quorum);
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
            // Servers without support reject the parameters, or all watches.
            Err(WatchError::Rejected {
                code: 400 | 405 | 422,
                ..
            }) => return Err(NoStream::Unsupported),
            Err(
                error @ (WatchError::NotInstalled
                | WatchError::Forbidden { .. }
                | WatchError::Unreachable { .. }
                | WatchError::ServerError { code: 429 | 503, .. }),
            ) => return Err(NoStream::NoList(error)),
            opened => opened?,
        };
        // An aggregated server can accept the parameters and ignore them: then it sends events, but never the bookmark.
        let limit = self.options.initial_events_limit();
        let mut initial_events = Idle::new(&self.clock, limit);
        let mut whole = Idle::new(&self.clock, limit.saturating_mul(WHOLE_STREAM));
        loop {
            let chunk = tokio::select! {
                biased;
                chunk = stream.response.chunk() => chunk,
                error = initial_events.over() => Err(error),
                error = whole.over() => Err(error),
            };
            let chunk = match chunk {
                Err(WatchError::IdleTimeout { .. }) => return Err(NoStream::Endless),
                Ok(None) => {
                    let reason = "the server closed a streamed list before its end".to_owned();
                    return Err(WatchError::Unreachable { reason }.into());
                }
                chunk => chunk?.unwrap_or_default(),
            };
            let (sink, floor) = (&mut self.sink, &self.revision);
            let (mut end, mut taken): (Option<Revision>, _) = (None, Ok(()));
            let pushed = stream.lines.push(&chunk, |line| {
                if taken.is_ok() {
                    let event = WatchEvent::parse(line);
                    if matches!(event, WatchEvent::Added(_)) {
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
            pushed.map_err(|error| WatchError::InvalidResponse {
                reason: error.to_string(),
            })?;
        }
    }

    /// Lists in pages, and parses each page while it arrives.
    async fn page_list(&mut self) -> Result<(), WatchError> {
        let (mut token, mut floor) = (String::new(), self.revision.clone());
        loop {
            let metadata = match self.page(&token).await {
                Ok(metadata) => metadata,
                // The rest of the list has expired. The next list is unpaged, which cannot expire.
                Err(error @ WatchError::Expired { .. }) if !token.is_empty() => {
                    self.paging = false;
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            let revision = Revision::new(&metadata.resource_version);
            check_known(&floor, &revision)?;
            if metadata.continue_token.is_empty() {
                self.sink.end(&revision);
                self.revision = revision;
                self.paging = true;
                return Ok(());
            }
            // A page after a page with a revision has a revision too.
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

/// Rejects a list without a resourceVersion if an earlier list had one. Some polled APIs (metrics.k8s.io) never send one.
fn check_known(floor: &Revision, revision: &Revision) -> Result<(), WatchError> {
    if floor.is_known() && !revision.is_known() {
        let reason = "the list has no resourceVersion, although the server sent one before".to_owned();
        return Err(WatchError::InvalidResponse { reason });
    }
    Ok(())
}

/// Rejects a list or a bookmark that is older than the revision that was asked for.
pub(super) fn check(floor: &Revision, revision: &Revision) -> Result<(), WatchError> {
    match revision.compare(floor) {
        Some(std::cmp::Ordering::Less) => Err(WatchError::StaleResponse {
            sent: revision.clone(),
            seen: floor.clone(),
        }),
        _ => Ok(()),
    }
}

/// Passes one event of a streamed list to the sink. Returns the revision with the last event.
fn take_initial(
    sink: &mut impl Sink,
    floor: &Revision,
    event: WatchEvent,
) -> Result<Option<Revision>, WatchError> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => sink.listed(object),
        WatchEvent::Deleted(object) => sink.unlisted(object),
        WatchEvent::Bookmark {
            revision,
            ends_initial_events: true,
        } => {
            check_known(floor, &revision)?;
            check(floor, &revision)?;
            sink.end(&revision);
            return Ok(Some(revision));
        }
        // Initial events are not ordered by revision, so there is no progress before their end.
        WatchEvent::Bookmark { .. } => {}
        WatchEvent::Invalid(error) => sink.invalid(&error),
        WatchEvent::Error(status) => return Err(WatchError::of_status(&status)),
        WatchEvent::Malformed { reason } => return Err(WatchError::InvalidResponse { reason }),
        WatchEvent::Nothing => {}
    }
    Ok(None)
}
