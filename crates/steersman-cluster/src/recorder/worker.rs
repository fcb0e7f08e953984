// SPDX-License-Identifier: Apache-2.0
//! Writes events to the server.

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
    cut, names,
};
use crate::{
    ApiError, ClusterName, Fence,
    transport::{SendError, Transport},
};

/// Number of attempts to write an event.
const TRIES: u32 = 5;
/// Maximum length of a field manager.
const FIELD_MANAGER_MAX: usize = 128;
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of rejections that are remembered as logged. There are as many as components, times a few codes.
const TOLD_MAX: usize = 1000;

pub(super) struct Worker {
    cluster: ClusterName,
    queue: mpsc::Receiver<Message>,
    transport: Transport,
    clock: Arc<dyn Clock>,
    random: Arc<Random>,
    counters: Arc<Counters>,
    book: Book<Key, Reference>,
    /// Last occurrence of each series.
    last: HashMap<Key, Last>,
    /// Components and codes of logged rejections, so that each is logged once.
    told: HashSet<(Arc<str>, u16)>,
}

/// Time of the last occurrence of an event, and the fences that its write has to pass.
#[derive(Clone)]
struct Last {
    at: SystemTime,
    fences: Arc<[Fence]>,
}

/// Result of a write.
enum Written {
    Done,
    /// The event object does not exist any more.
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

    /// Runs until all recorders are dropped.
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
                // The caller might have dropped the receiver.
                Some(Message::Barrier(done)) => _ = done.send(()),
                None => return,
            }
        }
    }

    async fn record(&mut self, key: Key, at: SystemTime, fences: Arc<[Fence]>) {
        let now = self.clock.now();
        // Parts of an object count as the same object.
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
                // Removes series that the book has forgotten.
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
            // A server keeps events for one hour.
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
        let address = format!("{path}?fieldManager={}", part(cut(component, FIELD_MANAGER_MAX)));
        let mut delay = FIRST_DELAY;
        for attempt in 1..=TRIES {
            match write_once(&transport, &method, &address, body).await {
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

    /// Logs a rejection once for each component and code, because further events are rejected for the same reason.
    fn tell(&mut self, component: &Arc<str>, path: &str, refusal: &ApiError) {
        if refusal.is_about_a_namespace() {
            tracing::debug!(%component, path, %refusal, "dropping event: namespace is deleted or terminating");
            return;
        }
        let about = (Arc::clone(component), refusal.code);
        if self.told.contains(&about) || self.told.len() >= TOLD_MAX {
            tracing::debug!(%component, path, %refusal, "API server rejected event");
            return;
        }
        self.told.insert(about);
        tracing::warn!(
            cluster = %self.cluster, %component, path, %refusal,
            "API server rejected event; suppressing further warnings like this: {}",
            advice(refusal.code)
        );
    }
}

/// Result of one attempt.
enum Attempt {
    Done,
    /// The event object or its namespace does not exist.
    Gone(ApiError),
    Refused(ApiError),
    HeldBack,
    /// Retry.
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
            tracing::debug!(%closed, "a fence rejected the event");
            return Attempt::HeldBack;
        }
        Err(error) => {
            tracing::debug!(%error, "failed to send event");
            return Attempt::Again;
        }
    };
    match response.status() {
        // An event with this name is the same event: the answer to an earlier attempt was lost.
        code if code.is_success() || code == StatusCode::CONFLICT => {
            // Reads the body so that the connection can be reused.
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

/// Returns the remedy for a rejection.
fn advice(code: u16) -> &'static str {
    match code {
        401 => "the server rejects the credentials of this account; renew them",
        403 => "grant the account `create` and `patch` on `events.events.k8s.io`",
        404 => "the server has no `events.k8s.io/v1`",
        _ => "correct the field that the server names",
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

/// Returns the namespace of an event. Events about cluster-scoped objects are in `default`.
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
