// SPDX-License-Identifier: Apache-2.0
//! Raw watches, for use without an informer.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::Stream;
use http::Method;
use http_body::Body as _;
use kube::{api::WatchParams, core::WatchEvent};
use serde::de::DeserializeOwned;

use super::{
    KindClient, answer,
    request::{JSON, RequestPlan},
};
use crate::{Error, Operation, transport::Guarded};

/// Maximum size of one watch event in bytes.
const EVENT_MAX: usize = 64 << 20;

/// Stream of the events of one watch; from [`Client::watch`](crate::Client::watch).
///
/// It ends when the server closes the watch, and does not resume. It yields nothing after an error.
pub struct Watch<K> {
    call: Operation,
    /// `None` after the end.
    body: Option<Guarded>,
    lines: Lines,
    events: VecDeque<Result<WatchEvent<K>, Error>>,
}

/// Splits bytes into lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl<K: DeserializeOwned + Send + Sync + 'static> KindClient<K> {
    /// As [`Client::watch`](crate::Client::watch).
    ///
    /// # Errors
    /// As there.
    pub async fn watch(&self, namespace: &str, options: &WatchParams, from: &str) -> Result<Watch<K>, Error> {
        self.watch_as(JSON, namespace, options, from).await
    }

    /// Like `watch`, with objects in another media type.
    pub(super) async fn watch_as(
        &self,
        form: &'static str,
        namespace: &str,
        options: &WatchParams,
        from: &str,
    ) -> Result<Watch<K>, Error> {
        let call = Operation::within("watch", &self.resource, namespace);
        let labels = options.label_selector.clone().unwrap_or_default();
        let fields = options.field_selector.clone().unwrap_or_default();
        let timeout = options
            .timeout
            .map(|seconds| seconds.to_string())
            .unwrap_or_default();
        let plan = RequestPlan::of_collection(Method::GET, &call)?
            .accepting(form)
            .with("watch", "true")
            .with("resourceVersion", from)
            .with_if(!labels.is_empty(), "labelSelector", &labels)
            .with_if(!fields.is_empty(), "fieldSelector", &fields)
            .with_if(!timeout.is_empty(), "timeoutSeconds", &timeout)
            .with_if(options.bookmarks, "allowWatchBookmarks", "true")
            .with_if(options.send_initial_events, "sendInitialEvents", "true")
            .with_if(
                options.send_initial_events,
                "resourceVersionMatch",
                "NotOlderThan",
            );
        let sent = self.client.0.transport.send(plan.request()?).await;
        let response = sent.map_err(|error| answer::unanswered(&call, error))?;
        let response = answer::accepted(&call, response).await?;
        Ok(Watch {
            call,
            body: Some(response.into_body()),
            lines: Lines::default(),
            events: VecDeque::new(),
        })
    }
}

impl<K: DeserializeOwned> Stream for Watch<K> {
    type Item = Result<WatchEvent<K>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop_front() {
                if event.is_err() {
                    this.body = None;
                    this.events.clear();
                }
                return Poll::Ready(Some(event));
            }
            let Some(body) = &mut this.body else {
                return Poll::Ready(None);
            };
            match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => this.take(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => this.events.push_back(Err(answer::unanswered(&this.call, error))),
                None => this.body = None,
            }
        }
    }
}

/// No field is pinned.
impl<K> Unpin for Watch<K> {}

impl<K: DeserializeOwned> Watch<K> {
    fn take(&mut self, bytes: &Bytes) {
        let (call, events) = (&self.call, &mut self.events);
        let is_fine = self.lines.push(bytes, |line| {
            events.push_back(answer::decode(call, line));
        });
        if !is_fine {
            let reason = "an event is longer than 64 MiB";
            events.push_back(Err(super::request::invalid(call, reason)));
        }
    }
}

impl Lines {
    /// Passes each complete line to `line`. Returns `false` if the rest is too long to continue.
    fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) -> bool {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            if self.0.is_empty() {
                line(&rest[..end]);
            } else {
                self.0.extend_from_slice(&rest[..end]);
                line(&std::mem::take(&mut self.0));
            }
            rest = &rest[end + 1..];
        }
        self.0.extend_from_slice(rest);
        self.0.len() <= EVENT_MAX
    }
}

impl<K> fmt::Debug for Watch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("call", &self.call)
            .field("open", &self.body.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_lines_in_any_chunks() {
        let text = b"one\ntwo\n\nthree";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                assert!(lines.push(piece, |line| {
                    found.push(String::from_utf8_lossy(line).into_owned())
                }));
            }
            assert_eq!(found, ["one", "two", ""], "{size}");
        }
    }
}
