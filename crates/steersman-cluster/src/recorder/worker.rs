// SPDX-License-Identifier: Apache-2.0
//! The one who writes events.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use steersman_core::{Clock, Random};
use tokio::sync::mpsc;

use super::{
    Counters, Key, Message, Reference, WallClock,
    book::{Book, Series, Step},
    cut,
};
use crate::{
    Fence,
    transport::{SendError, Transport},
};

/// How often an event is tried that the server does not take.
const TRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest name that an object may have.
const NAME_MAX: usize = 253;

pub(super) struct Worker {
    queue: mpsc::Receiver<Message>,
    transport: Transport,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    wall: WallClock,
    counters: Arc<Counters>,
    book: Book<Key, Reference>,
    /// What the series were recorded with last.
    fences: HashMap<Key, Arc<[Fence]>>,
}

/// What became of a write.
enum Written {
    Done,
    /// The server does not have the object any more.
    Gone,
    Failed,
}

impl Worker {
    pub(super) fn new(
        queue: mpsc::Receiver<Message>,
        transport: Transport,
        (clock, random): (Arc<dyn Clock>, Arc<Random>),
        (wall, counters): (WallClock, Arc<Counters>),
    ) -> Self {
        Self {
            queue,
            transport,
            clock,
            random,
            wall,
            counters,
            book: Book::new(),
            fences: HashMap::new(),
        }
    }

    /// Goes on until there are no recorders any more.
    pub(super) async fn run(mut self) {
        loop {
            let next = self.book.next();
            let due = async {
                match next {
                    Some(moment) => self.clock.sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                biased;
                message = self.queue.recv() => message,
                () = due => {
                    self.write_due().await;
                    continue;
                }
            };
            match message {
                Some(Message::Event { key, at, fences }) => self.record(*key, at, fences).await,
                // Whoever asked may have gone.
                Some(Message::Barrier(done)) => _ = done.send(()),
                None => return,
            }
        }
    }

    async fn record(&mut self, key: Key, at: SystemTime, fences: Arc<[Fence]>) {
        let now = self.clock.now();
        // A part of an object is no other object.
        let object = Reference {
            field_path: String::new(),
            ..key.regarding.clone()
        };
        match self.book.observe(&key, &object, now) {
            Step::Create => self.create(key, at, fences).await,
            Step::Update => {
                self.fences.insert(key.clone(), fences);
                self.update(key, at).await;
            }
            Step::Later => _ = self.fences.insert(key, fences),
            Step::Drop => self.counters.dropped(),
        }
    }

    async fn create(&mut self, key: Key, at: SystemTime, fences: Arc<[Fence]>) {
        let unique = format!(".{:016x}", self.random.next_u64());
        let name = format!("{}{unique}", cut(&key.regarding.name, NAME_MAX - unique.len()));
        let event = key.event(&name, at);
        match self.write(Method::POST, collection(&key), &event, &fences).await {
            Written::Done => {
                self.fences.insert(key.clone(), fences);
                self.book.created(key, name, self.clock.now());
                // Those that the book has forgotten.
                let book = &self.book;
                self.fences.retain(|key, _| book.get(key).is_some());
            }
            Written::Gone | Written::Failed => self.counters.dropped(),
        }
    }

    async fn update(&mut self, key: Key, at: SystemTime) {
        let Some(Series { name, count, .. }) = self.book.get(&key).cloned() else {
            return;
        };
        let fences = self.fences.get(&key).cloned().unwrap_or_else(|| Arc::new([]));
        let patch = json!({"series": {"count": count, "lastObservedTime": micro_time(at)}});
        let path = format!("{}/{}", collection(&key), part(&name));
        let written = self.write(Method::PATCH, path, &patch, &fences).await;
        let now = self.clock.now();
        match written {
            Written::Done => self.book.updated(&key, count, now),
            // A server keeps events for an hour.
            Written::Gone => {
                self.book.forget(&key);
                self.create(key, at, fences).await;
            }
            Written::Failed => {
                self.counters.dropped();
                self.book.updated(&key, count, now);
            }
        }
    }

    async fn write_due(&mut self) {
        let at = (self.wall)();
        for (key, _) in self.book.due(self.clock.now()) {
            self.update(key, at).await;
        }
    }

    async fn write(&self, method: Method, path: String, body: &Value, fences: &[Fence]) -> Written {
        let mut transport = self.transport.clone();
        fences.iter().for_each(|fence| transport.add_fence(fence.clone()));
        let mut delay = FIRST_DELAY;
        for _ in 1..TRIES {
            match self.write_once(&transport, &method, &path, body).await {
                Some(written) => return written,
                None => self.clock.sleep_until(self.clock.now() + delay).await,
            }
            delay *= 2;
        }
        let last = self.write_once(&transport, &method, &path, body).await;
        last.unwrap_or(Written::Failed)
    }

    /// Nothing if it is worth another try.
    async fn write_once(
        &self,
        transport: &Transport,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> Option<Written> {
        let form = match *method {
            Method::POST => "application/json",
            _ => "application/merge-patch+json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, form)
            .header(header::ACCEPT, "application/json")
            .body(Body::from(body.to_string().into_bytes()));
        let Ok(request) = request else {
            return Some(Written::Failed);
        };
        let response = match transport.send(request).await {
            Ok(response) => response,
            Err(SendError::Closed(closed)) => {
                tracing::debug!(%closed, "an event is held back");
                return Some(Written::Failed);
            }
            Err(error) => {
                tracing::debug!(%error, "an event does not reach the server");
                return None;
            }
        };
        let code = response.status();
        // So that the connection can be used again. What it says does not matter.
        let _ = response.into_body().collect().await;
        match code {
            // One of the same name is this one: the answer to an earlier try was lost.
            code if code.is_success() || code == StatusCode::CONFLICT => Some(Written::Done),
            StatusCode::NOT_FOUND => Some(Written::Gone),
            code if code.is_server_error() || code == StatusCode::TOO_MANY_REQUESTS => None,
            code => {
                tracing::debug!(%code, path, "an event is refused");
                Some(Written::Failed)
            }
        }
    }
}

impl Key {
    fn event(&self, name: &str, at: SystemTime) -> Value {
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace(self)},
            "eventTime": micro_time(at),
            "reportingController": &*self.component,
            "reportingInstance": &*self.instance,
            "action": &*self.action,
            "reason": &*self.reason,
            "note": &*self.note,
            "regarding": self.regarding.value(),
            "type": self.kind.to_string(),
        });
        if let Some(related) = &self.related {
            event["related"] = related.value();
        }
        event
    }
}

impl Reference {
    fn value(&self) -> Value {
        let fields = [
            ("apiVersion", &self.api_version),
            ("kind", &self.kind),
            ("namespace", &self.namespace),
            ("name", &self.name),
            ("uid", &self.uid),
            ("fieldPath", &self.field_path),
        ];
        let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
        said.map(|(field, value)| (field.to_owned(), json!(value)))
            .collect()
    }
}

/// Where events about cluster-scoped objects are, too.
fn namespace(key: &Key) -> &str {
    match key.regarding.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn collection(key: &Key) -> String {
    format!(
        "/apis/events.k8s.io/v1/namespaces/{}/events",
        part(namespace(key))
    )
}

fn part(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

fn micro_time(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_servers_want_them() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        assert_eq!(micro_time(at), "2023-11-14T22:13:20.250000Z");
        assert_eq!(micro_time(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
    }
}
