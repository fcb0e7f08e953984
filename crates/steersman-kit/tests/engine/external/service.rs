// SPDX-License-Identifier: Apache-2.0
//! A small HTTP service with buckets, and its client.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_core::{Clock, MonotonicTime, Spawner, Task, TestClock};
use steersman_kit::{External, ExternalId, Observation};
use steersman_runtime::BoxError;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A service on the loopback address. Each connection carries one request.
pub(super) struct Service {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _accepting: Task,
}

/// Calls and buckets of the service.
pub(super) struct State {
    takes_token: bool,
    clock: Arc<TestClock>,
    pub(super) buckets: BTreeMap<String, Bucket>,
    /// Number of buckets that were ever created.
    pub(super) created: usize,
    pub(super) calls: Vec<String>,
    /// Kills the caller at the call of this number, before or after the service acts on it.
    pub(super) kill_at: Option<(usize, Moment)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    Before,
    After,
}

pub(super) struct Bucket {
    pub(super) tag: String,
    pub(super) region: String,
    /// Time from which on reads show it.
    visible: MonotonicTime,
    /// Time at which its deletion ends.
    pub(super) deleted: Option<MonotonicTime>,
}

/// A bucket as the service shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Shown {
    id: String,
    region: String,
}

/// Reads show a new bucket of the service without tokens only after this time, and a deleted one for this time.
const LAG: Duration = Duration::from_secs(10);

impl Service {
    pub(super) async fn start(takes_token: bool, clock: &Arc<TestClock>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            takes_token,
            clock: Arc::clone(clock),
            buckets: BTreeMap::new(),
            created: 0,
            calls: Vec::new(),
            kill_at: None,
        }));
        let shared = Arc::clone(&state);
        let accepting = Spawner::current().spawn("service", async move {
            while let Ok((connection, _)) = listener.accept().await {
                // A caller that was killed closes its connection.
                _ = serve(connection, &shared).await;
            }
        });
        Self {
            address,
            state,
            _accepting: accepting,
        }
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

async fn serve(mut connection: TcpStream, state: &Mutex<State>) -> Result<(), BoxError> {
    let mut request = Vec::new();
    let (head, body) = loop {
        if connection.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let answer = {
        let mut state = state.lock().unwrap();
        let number = state.calls.len();
        state.calls.push(format!("{method} {path}"));
        let kill = state
            .kill_at
            .filter(|(at, _)| *at == number)
            .map(|(_, moment)| moment);
        if kill == Some(Moment::Before) {
            return Ok(());
        }
        let answer = state.act(method, path, &serde_json::from_str(&body).unwrap_or_default());
        if kill == Some(Moment::After) {
            return Ok(());
        }
        answer
    };
    let (status, body) = answer.map_or(("404 Not Found", "null".to_owned()), |body| {
        ("200 OK", body.to_string())
    });
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    connection.write_all(answer.as_bytes()).await?;
    Ok(())
}

impl State {
    fn act(&mut self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let now = self.clock.now();
        self.buckets
            .retain(|_, bucket| bucket.deleted.is_none_or(|deleted| deleted > now));
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let rest = path.strip_prefix("/buckets")?;
        match (method, rest.strip_prefix('/'), rest.strip_prefix("?tag=")) {
            ("POST", None, None) => {
                let known = self.buckets.iter().find(|(_, known)| known.tag == text("tag"));
                if let (true, Some((id, _))) = (self.takes_token, known) {
                    return Some(json!({"id": id}));
                }
                self.created += 1;
                let id = format!("b{}", self.created);
                let lag = if self.takes_token { Duration::ZERO } else { LAG };
                let bucket = Bucket {
                    tag: text("tag"),
                    region: text("region"),
                    visible: now + lag,
                    deleted: None,
                };
                self.buckets.insert(id.clone(), bucket);
                Some(json!({"id": id}))
            }
            ("GET", id, tag) => {
                let is_wanted = |(key, bucket): &(&String, &Bucket)| {
                    bucket.visible <= now && (id == Some(key) || tag == Some(&bucket.tag))
                };
                let (id, bucket) = self.buckets.iter().find(is_wanted)?;
                Some(json!({"id": id, "region": bucket.region}))
            }
            ("PUT", Some(id), _) => {
                self.buckets.get_mut(id)?.region = text("region");
                Some(json!({}))
            }
            ("DELETE", Some(id), _) => {
                self.buckets.get_mut(id)?.deleted.get_or_insert(now + LAG);
                Some(json!({}))
            }
            _ => None,
        }
    }
}

/// Client of the service.
#[derive(Clone)]
pub(super) struct Client<const TAKES_TOKEN: bool>(SocketAddr);

impl<const TAKES_TOKEN: bool> Client<TAKES_TOKEN> {
    pub(super) fn of(service: &Service) -> Self {
        Self(service.address)
    }

    /// Sends a request. `None` means 404.
    async fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Option<T>, BoxError> {
        let mut connection = TcpStream::connect(self.0).await?;
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: buckets\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .ok_or("the service did not answer")?;
        if head.starts_with("HTTP/1.1 404") {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(body)?))
    }
}

impl<const TAKES_TOKEN: bool> External for Client<TAKES_TOKEN> {
    type Desired = str;
    type Observed = String;
    const TAKES_TOKEN: bool = TAKES_TOKEN;

    async fn observe(&self, id: &ExternalId) -> Result<Option<Observation<String>>, BoxError> {
        let path = match &id.id {
            Some(id) => format!("/buckets/{id}"),
            None => format!("/buckets?tag={}", id.token),
        };
        let found: Option<Shown> = self.send("GET", &path, &Value::Null).await?;
        Ok(found.map(|Shown { id, region }| Observation { id, state: region }))
    }

    async fn create(&self, token: &str, region: &str) -> Result<String, BoxError> {
        let body = json!({"tag": token, "region": region});
        let made: Option<Value> = self.send("POST", "/buckets", &body).await?;
        let id = made.and_then(|made| made["id"].as_str().map(str::to_owned));
        Ok(id.ok_or("the service returned no id")?)
    }

    fn differs(&self, observed: &String, desired: &str) -> bool {
        observed != desired
    }

    async fn update(&self, id: &str, region: &str) -> Result<(), BoxError> {
        let path = format!("/buckets/{id}");
        self.send::<Value>("PUT", &path, &json!({"region": region}))
            .await?;
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), BoxError> {
        self.send::<Value>("DELETE", &format!("/buckets/{id}"), &Value::Null)
            .await?;
        Ok(())
    }
}
