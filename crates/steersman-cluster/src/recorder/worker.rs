// SPDX-License-Identifier: Apache-2.0
//! The one who writes events.

use std::{
    collections::{HashMap, HashSet},
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
    Counters, Key, Message, Reference,
    book::{Book, Series, Step},
    names,
};
use crate::{
    ApiError, ClusterName, Fence,
    transport::{SendError, Transport},
};

/// How often an event is tried that the server does not take.
const TRIES: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Of how many refusals it is remembered that they were logged. There are as many as components, times a few codes.
const TOLD_MAX: usize = 1000;

pub(super) struct Worker {
    cluster: ClusterName,
    queue: mpsc::Receiver<Message>,
    transport: Transport,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    counters: Arc<Counters>,
    book: Book<Key, Reference>,
    /// How the series were recorded last.
    last: HashMap<Key, Last>,
    /// Whose events were refused with which code, so that the log says it once.
    told: HashSet<(Arc<str>, u16)>,
}

/// When something happened last, and what it has to pass to be written.
#[derive(Clone)]
struct Last {
    at: SystemTime,
    fences: Arc<[Fence]>,
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
        cluster: ClusterName,
        queue: mpsc::Receiver<Message>,
        transport: Transport,
        (clock, random): (Arc<dyn Clock>, Arc<Random>),
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            cluster,
            queue,
            transport,
            clock,
            random,
            counters,
            book: Book::new(),
            last: HashMap::new(),
            told: HashSet::new(),
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
        let last = Last { at, fences };
        match self.book.observe(&key, &object, now) {
            Step::Create => self.create(key, last).await,
            Step::Update => {
                self.last.insert(key.clone(), last);
                self.update(key).await;
            }
            Step::Later => _ = self.last.insert(key, last),
            Step::Drop => self.counters.dropped(),
        }
    }

    async fn create(&mut self, key: Key, last: Last) {
        let name = names::of_event(&key.regarding.name, self.random.next_u64());
        let event = key.event(&name, last.at);
        let written = self
            .write(
                &key.component,
                Method::POST,
                collection(&key),
                &event,
                &last.fences,
            )
            .await;
        match written {
            Written::Done => {
                self.last.insert(key.clone(), last);
                self.book.created(key, name, self.clock.now());
                // Those that the book has forgotten.
                let book = &self.book;
                self.last.retain(|key, _| book.get(key).is_some());
            }
            Written::Gone | Written::Failed => self.counters.dropped(),
        }
    }

    async fn update(&mut self, key: Key) {
        let (Some(Series { name, count, .. }), Some(last)) =
            (self.book.get(&key).cloned(), self.last.get(&key).cloned())
        else {
            return;
        };
        let patch = json!({"series": {"count": count, "lastObservedTime": micro_time(last.at)}});
        let path = format!("{}/{}", collection(&key), part(&name));
        let written = self
            .write(&key.component, Method::PATCH, path, &patch, &last.fences)
            .await;
        let now = self.clock.now();
        match written {
            Written::Done => self.book.updated(&key, count, now),
            // A server keeps events for an hour.
            Written::Gone => {
                self.book.forget(&key);
                self.create(key, last).await;
            }
            Written::Failed => {
                self.counters.dropped();
                self.book.updated(&key, count, now);
            }
        }
    }

    async fn write_due(&mut self) {
        for (key, _) in self.book.due(self.clock.now()) {
            self.update(key).await;
        }
    }

    async fn write(
        &mut self,
        component: &Arc<str>,
        method: Method,
        path: String,
        body: &Value,
        fences: &[Fence],
    ) -> Written {
        let mut transport = self.transport.clone();
        fences.iter().for_each(|fence| transport.add_fence(fence.clone()));
        let mut delay = FIRST_DELAY;
        for attempt in 1..=TRIES {
            match write_once(&transport, &method, &path, body).await {
                Attempt::Done => return Written::Done,
                Attempt::Gone(_) if method == Method::PATCH => return Written::Gone,
                Attempt::Gone(refusal) | Attempt::Refused(refusal) => {
                    self.tell(component, &path, &refusal);
                    return Written::Failed;
                }
                Attempt::HeldBack => return Written::Failed,
                Attempt::Again if attempt == TRIES => {}
                Attempt::Again => self.clock.sleep_until(self.clock.now() + delay).await,
            }
            delay *= 2;
        }
        Written::Failed
    }

    /// Says once of each component and code that its events are refused: what is wrong with one is wrong with the next.
    fn tell(&mut self, component: &Arc<str>, path: &str, refusal: &ApiError) {
        if refusal.is_about_a_namespace() {
            tracing::debug!(%component, path, %refusal, "an event comes after its namespace");
            return;
        }
        let about = (Arc::clone(component), refusal.code);
        if self.told.contains(&about) || self.told.len() >= TOLD_MAX {
            tracing::debug!(%component, path, %refusal, "an event is refused");
            return;
        }
        self.told.insert(about);
        tracing::warn!(
            cluster = %self.cluster, %component, path, %refusal,
            "an event is refused and dropped, and more like it will be without a word: {}",
            advice(refusal.code)
        );
    }
}

/// What became of one attempt.
enum Attempt {
    Done,
    /// There is no such object, or no such place for it.
    Gone(ApiError),
    Refused(ApiError),
    HeldBack,
    /// It is worth another try.
    Again,
}

async fn write_once(transport: &Transport, method: &Method, path: &str, body: &Value) -> Attempt {
    let form = match *method {
        Method::POST => "application/json",
        _ => "application/merge-patch+json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, form)
        .header(header::ACCEPT, "application/json")
        .body(Body::from(body.to_string().into_bytes()))
        .expect("an encoded path makes a request");
    let response = match transport.send(request).await {
        Ok(response) => response,
        Err(SendError::Closed(closed)) => {
            tracing::debug!(%closed, "an event is held back");
            return Attempt::HeldBack;
        }
        Err(error) => {
            tracing::debug!(%error, "an event does not reach the server");
            return Attempt::Again;
        }
    };
    match response.status() {
        // One of the same name is this one: the answer to an earlier try was lost.
        code if code.is_success() || code == StatusCode::CONFLICT => {
            // So that the connection can be used again. What it says does not matter.
            let _ = response.into_body().collect().await;
            Attempt::Done
        }
        code if code.is_server_error() || code == StatusCode::TOO_MANY_REQUESTS => {
            let _ = response.into_body().collect().await;
            Attempt::Again
        }
        StatusCode::NOT_FOUND => Attempt::Gone(ApiError::read(response).await),
        _ => Attempt::Refused(ApiError::read(response).await),
    }
}

/// What to do about a refusal.
fn advice(code: u16) -> &'static str {
    match code {
        401 => "the server does not know this account: see to its credentials",
        403 => "grant the account `create` and `patch` on `events.events.k8s.io`",
        404 => "the server has no `events.k8s.io/v1`",
        _ => "correct what the server names",
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
