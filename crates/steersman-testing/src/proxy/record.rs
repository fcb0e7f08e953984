// SPDX-License-Identifier: Apache-2.0
//! Recording of requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use http::request::Parts;
use tokio::sync::watch;

use super::{Cut, Matching};
use crate::Identity;

/// One request and its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exchange {
    /// Number of the TCP connection, counted from 1 in the order of acceptance.
    pub connection: u64,
    /// Name of the client's identity, if it was announced.
    pub identity: Option<String>,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
    /// Status of the answer to the client.
    pub status: Option<u16>,
    /// Time when the request's head had arrived.
    pub arrived: Instant,
    /// Time when the first byte of the answer was forwarded.
    pub first_byte: Option<Instant>,
    /// Time when the last byte of the answer so far was forwarded.
    pub last_byte: Option<Instant>,
    /// Number of forwarded bytes of the answer's body.
    pub bytes: u64,
    /// End of the exchange, if it has ended.
    pub ended: Option<Ended>,
}

/// End of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The whole answer was forwarded.
    Complete,
    /// A fault ended it.
    Cut,
    /// The client closed the connection.
    ClientGone,
    /// The server could not be reached, or closed the connection.
    ServerGone,
}

impl Exchange {
    #[cfg(test)]
    pub(crate) fn for_tests(method: &str, path: &str, query: &str) -> Self {
        Self {
            connection: 0,
            identity: None,
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            status: None,
            arrived: now(),
            first_byte: None,
            last_byte: None,
            bytes: 0,
            ended: None,
        }
    }

    /// Reports whether this is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"))
    }

    /// Reports whether this is a write.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS")
    }

    /// Reports whether the answer is still under way.
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
    /// Notifies waiters of changes.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Names by token. Tokens are stored only here.
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

/// Records one exchange: first the request, then the body of its answer.
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
            // The sender exists as long as `self`.
            let _ = changes.changed().await;
        }
    }
}

impl Recorder {
    fn update(&self, update: impl FnOnce(&mut Exchange)) {
        self.log.change(|state| {
            // The exchange might have been removed.
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

    /// Sets the end. Only the first one counts.
    pub(super) fn ended(&self, ended: Ended) {
        self.update(|exchange| {
            exchange.ended.get_or_insert(ended);
        });
    }
}

impl Drop for Recorder {
    /// hyper drops it before its end if the client closes the connection.
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
