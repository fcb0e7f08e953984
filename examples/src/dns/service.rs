// SPDX-License-Identifier: Apache-2.0
//! The DNS service: entries in memory, behind an HTTP API.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Response, StatusCode};
use steersman::{
    core::{Spawner, Task, TokioClock},
    endpoints::{HttpHandler, HttpRequest, Routes, Server, read_body},
    prelude::BoxError,
};

use super::{DnsRecordSpec, Entry};

/// Maximum size of a request in bytes.
const BODY_MAX: usize = 64 << 10;

/// A DNS service that runs until it is dropped.
#[derive(Debug)]
pub struct DnsService {
    address: SocketAddr,
    entries: Entries,
    _serving: Task,
}

type Entries = Arc<Mutex<Vec<Entry>>>;

impl DnsService {
    /// Starts the service at this address; port 0 is a free port.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn start(address: SocketAddr) -> Result<Self, BoxError> {
        let entries = Entries::default();
        let shared = Arc::clone(&entries);
        let handler = HttpHandler::new(move |request| {
            let entries = Arc::clone(&shared);
            async move { respond(&entries, request).await }
        });
        let mut routes = Routes::new();
        routes.add("/entries", handler)?;
        let server = Server::bind(address, routes, Arc::new(TokioClock::new()))?;
        Ok(Self {
            address: server.address(),
            entries,
            _serving: Spawner::current().spawn("dns service", async move {
                if let Err(error) = server.serve(std::future::pending()).await {
                    tracing::error!(%error, "the DNS service has ended");
                }
            }),
        })
    }

    /// Address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all entries.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

async fn respond(entries: &Mutex<Vec<Entry>>, request: HttpRequest) -> Response<String> {
    let (head, body) = request.into_parts();
    let spec = match read_body(body, BODY_MAX).await {
        Ok(body) => serde_json::from_slice(&body).ok(),
        Err(error) => return answer(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let query = head.uri.query().unwrap_or_default();
    let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
    match act(&mut entries, &head.method, query, spec) {
        Some(entry) => match serde_json::to_string(&entry) {
            Ok(body) => answer(StatusCode::OK, body),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        None => answer(StatusCode::NOT_FOUND, String::new()),
    }
}

/// Acts on a request, and returns its entry.
fn act(entries: &mut Vec<Entry>, method: &Method, query: &str, spec: Option<DnsRecordSpec>) -> Option<Entry> {
    let is_wanted = |entry: &Entry| match query.split_once('=') {
        Some(("id", id)) => entry.id == id,
        Some(("token", token)) => entry.token == token,
        _ => false,
    };
    let found = entries.iter().position(is_wanted);
    match (method.as_str(), found) {
        ("POST", None) => {
            let token = query.strip_prefix("token=")?.to_owned();
            let id = format!("entry-{token}");
            let spec = spec?;
            entries.push(Entry { id, token, spec });
            entries.last().cloned()
        }
        ("PUT", Some(index)) => {
            entries[index].spec = spec?;
            Some(entries[index].clone())
        }
        ("DELETE", Some(index)) => Some(entries.remove(index)),
        // A second POST with the same token has the answer of the first.
        (_, found) => entries.get(found?).cloned(),
    }
}

fn answer(status: StatusCode, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
