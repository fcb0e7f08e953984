// SPDX-License-Identifier: Apache-2.0
//! What was on the wire.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use http::request::Parts;
use tokio::sync::watch;

use super::fault::{Cut, Matching};
use crate::Identity;

/// One request and what became of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exchange {
    /// The TCP connection on which it came, counted from 1 in the order of their acceptance.
    pub connection: u64,
    /// Who asked, if that identity was announced.
    pub identity: Option<String>,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
    /// The status that the client was answered with.
    pub status: Option<u16>,
    /// When the request's head had arrived.
    pub arrived: Instant,
    /// When the first byte of the answer was handed on.
    pub first_byte: Option<Instant>,
    /// When the last byte of the answer so far was handed on.
    pub last_byte: Option<Instant>,
    /// How many bytes of the answer's body were handed on.
    pub bytes: u64,
    /// How it ended, if it has.
    pub ended: Option<Ended>,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The whole answer was handed on.
    Complete,
    /// A fault ended it.
    Cut,
    /// The client hung up.
    ClientGone,
    /// The server could not be reached, or hung up.
    ServerGone,
}

impl Exchange {
    /// Whether this is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
    }

    /// Whether this changes something on the server.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS")
    }

    /// Whether the answer is still under way.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }
}

#[derive(Debug, Default)]
pub(super) struct Log(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Counts changes, so that waiters look again.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Names by token. A token is kept here and nowhere else.
    names: HashMap<String, String>,
    entries: Vec<Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    exchange: Exchange,
    cut: watch::Sender<Option<Cut>>,
}

/// The one who records an exchange: the request's handler and then its answer's body.
#[derive(Debug)]
pub(super) struct Recorder {
    log: Arc<Inner>,
    id: u64,
    pub(super) cut: watch::Receiver<Option<Cut>>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changes.send_replace(());
        result
    }
}

impl Log {
    pub(super) fn announce(&self, identity: &Identity) {
        self.0
            .lock()
            .names
            .insert(identity.token().to_owned(), identity.name().to_owned());
    }

    pub(super) fn begin(&self, connection: u64, request: &Parts) -> Recorder {
        let (sender, cut) = watch::channel(None);
        let token = request
            .headers
            .get(http::header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let id = self.0.change(|state| {
            let exchange = Exchange {
                connection,
                identity: token.and_then(|token| state.names.get(token)).cloned(),
                method: request.method.to_string(),
                path: request.uri.path().to_owned(),
                query: request.uri.query().unwrap_or_default().to_owned(),
                status: None,
                arrived: now(),
                first_byte: None,
                last_byte: None,
                bytes: 0,
                ended: None,
            };
            state.next += 1;
            state.entries.push(Entry {
                id: state.next,
                exchange,
                cut: sender,
            });
            state.next
        });
        Recorder {
            log: Arc::clone(&self.0),
            id,
            cut,
        }
    }

    pub(super) fn cut(&self, matching: &Matching, cut: Cut) -> usize {
        let state = self.0.lock();
        let open = state.entries.iter().filter(|entry| entry.exchange.is_open());
        open.filter(|entry| matching.matches(&entry.exchange))
            .inspect(|entry| _ = entry.cut.send_replace(Some(cut)))
            .count()
    }

    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        self.0
            .lock()
            .entries
            .iter()
            .map(|entry| entry.exchange.clone())
            .collect()
    }

    pub(super) fn forget_ended(&self) {
        self.0.lock().entries.retain(|entry| entry.exchange.is_open());
    }

    pub(super) async fn wait_for<T>(&self, mut condition: impl FnMut(&[Exchange]) -> Option<T>) -> T {
        let mut changes = self.0.changes.subscribe();
        loop {
            if let Some(found) = condition(&self.exchanges()) {
                return found;
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }
}

impl Recorder {
    fn update(&self, update: impl FnOnce(&mut Exchange)) {
        self.log.change(|state| {
            // It may have been forgotten.
            let index = state.entries.binary_search_by_key(&self.id, |entry| entry.id);
            if let Ok(index) = index {
                update(&mut state.entries[index].exchange);
            }
        });
    }

    pub(super) fn exchange(&self) -> Option<Exchange> {
        let state = self.log.lock();
        let index = state
            .entries
            .binary_search_by_key(&self.id, |entry| entry.id)
            .ok()?;
        Some(state.entries[index].exchange.clone())
    }

    pub(super) fn answered(&self, status: u16) {
        self.update(|exchange| {
            exchange.status = Some(status);
            exchange.first_byte = Some(now());
            exchange.last_byte = exchange.first_byte;
        });
    }

    pub(super) fn handed_on(&self, bytes: usize) {
        self.update(|exchange| {
            exchange.bytes += bytes as u64;
            exchange.last_byte = Some(now());
        });
    }

    /// The first end counts.
    pub(super) fn ended(&self, ended: Ended) {
        self.update(|exchange| {
            exchange.ended.get_or_insert(ended);
        });
    }
}

impl Drop for Recorder {
    /// Dropped before its end by hyper, because the client hung up.
    fn drop(&mut self) {
        self.ended(Ended::ClientGone);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is on a real wire happens in real time"
)]
fn now() -> Instant {
    Instant::now()
}
