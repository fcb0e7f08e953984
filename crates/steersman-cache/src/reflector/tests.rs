// SPDX-License-Identifier: Apache-2.0
//! Tests the reflector with a scripted server and a test clock.

mod errors;
mod streamed;
mod watches;

use std::{
    collections::VecDeque,
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::{StreamExt, channel::mpsc, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::client::{Body, Client};
use steersman_core::{Clock, Presence, Random, Spawner, Task, TestClock};
use tokio::{sync::watch, task::yield_now};

use super::{Reflector, ReflectorOptions, Sink, WatchError, Watched};
use crate::{
    InformerContext, InvalidObject, Object, Resource, Revision, Scope,
    health::{HealthState, HealthTracker},
    presence_source::PresenceSource,
    store::ReadConsistency,
};

/// The calls of the sink.
#[derive(Clone, Default)]
struct SinkLog(Arc<Mutex<Vec<String>>>);

impl SinkLog {
    fn record(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Sink for SinkLog {
    fn begin(&mut self, _: ReadConsistency) {
        self.record("begin".to_owned());
    }
    fn unlisted(&mut self, object: Arc<Object>) {
        self.record(format!("unlisted {}", object.name()));
    }
    fn listed(&mut self, object: Arc<Object>) {
        self.record(format!("listed {}", object.name()));
    }
    fn end(&mut self, revision: &Revision) {
        self.record(format!("end {revision}"));
    }
    fn abandon(&mut self) {
        self.record("abandon".to_owned());
    }
    fn changed(&mut self, object: Arc<Object>) -> bool {
        self.record(format!("changed {}", object.name()));
        assert_ne!(object.name(), "poison", "a sink of the test panics on purpose");
        object.name() != "older"
    }
    fn deleted(&mut self, object: Arc<Object>) -> bool {
        self.record(format!("deleted {}", object.name()));
        object.name() != "older"
    }
    fn progressed(&mut self, revision: &Revision) {
        self.record(format!("progressed {revision}"));
    }
    fn invalid(&mut self, error: &InvalidObject) {
        self.record(format!("invalid: {error}"));
    }
}

/// One response of the scripted server.
struct Answer {
    code: u16,
    headers: Vec<(&'static str, &'static str)>,
    chunks: Vec<Bytes>,
    /// End of the body: normal, by a broken connection, or never.
    end: End,
}

enum End {
    Good,
    Broken,
    Never,
    /// After more was sent through the channel.
    Later(mpsc::Receiver<Bytes>),
}

fn answer(code: u16, body: &str) -> Answer {
    Answer {
        code,
        headers: Vec::new(),
        chunks: vec![Bytes::from(body.to_owned())],
        end: End::Good,
    }
}

fn watch_of(lines: &[String], end: End) -> Answer {
    Answer {
        end,
        ..answer(
            200,
            &lines.iter().map(|line| format!("{line}\n")).collect::<String>(),
        )
    }
}

fn refusal(code: u16) -> Answer {
    answer(
        code,
        &format!(r#"{{"kind":"Status","message":"no {code}","code":{code}}}"#),
    )
}

fn object(name: &str, revision: u32) -> String {
    format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"{revision}"}}}}"#)
}

fn event(kind: &str, name: &str, revision: u32) -> String {
    format!(r#"{{"type":"{kind}","object":{}}}"#, object(name, revision))
}

fn bookmark(revision: u32, is_end: bool) -> String {
    let annotations = if is_end {
        r#","annotations":{"k8s.io/initial-events-end":"true"}"#
    } else {
        ""
    };
    format!(
        r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{revision}"{annotations}}}}}}}"#
    )
}

fn error_event(code: u16) -> String {
    format!(r#"{{"type":"ERROR","object":{{"kind":"Status","message":"no {code}","code":{code}}}}}"#)
}

fn list(names: &[&str], revision: u32, token: &str) -> Answer {
    let items: Vec<String> = names.iter().map(|name| object(name, revision)).collect();
    answer(
        200,
        &format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"{revision}","continue":"{token}"}},"items":[{}]}}"#,
            items.join(",")
        ),
    )
}

/// A reflector, its server and its clock.
struct Scene {
    events: SinkLog,
    requests: Arc<Mutex<Vec<String>>>,
    script: Arc<Mutex<VecDeque<Answer>>>,
    clock: TestClock,
    health: watch::Receiver<HealthState>,
    _task: Task,
}

impl Scene {
    fn start(options: ReflectorOptions, script: impl IntoIterator<Item = Answer>) -> Self {
        Self::knowing(options, script, PresenceSource::default())
    }

    fn knowing(
        options: ReflectorOptions,
        script: impl IntoIterator<Item = Answer>,
        known: PresenceSource,
    ) -> Self {
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answers, seen) = (Arc::clone(&script), Arc::clone(&requests));
        let service = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let answer = answers.lock().unwrap().pop_front();
            async move {
                match answer {
                    Some(answer) => Ok(respond(answer)),
                    None => Err(std::io::Error::other("the script is over")),
                }
            }
        });
        let (clock, events) = (TestClock::new(), SinkLog::default());
        let health_tracker = HealthTracker::new();
        let health = health_tracker.subscribe();
        let context = InformerContext::new(
            Client::new(service, "default"),
            Arc::new(clock.clone()),
            Arc::new(Random::from_seed(1)),
            Spawner::current(),
        );
        let reflector = Reflector::new(
            &context.knowing(known),
            Watched {
                resource: Resource::new("", "v1", "ConfigMap", "configmaps"),
                scope: Scope::all().labels("a=b"),
                namespace: String::new(),
            },
            options,
            events.clone(),
            health_tracker.reporter(),
        );
        let task = Spawner::current().spawn("reflector", reflector.run());
        Self {
            events,
            requests,
            script,
            clock,
            health,
            _task: task,
        }
    }

    /// Lets every task run until all of them wait.
    async fn settle(&self) {
        for _ in 0..200 {
            yield_now().await;
        }
    }

    /// Returns the calls of the sink, after the script so far.
    async fn events(&self) -> Vec<String> {
        self.settle().await;
        self.events.take()
    }

    /// Advances the clock to the next deadline, and returns by how much.
    async fn wait(&self) -> Duration {
        self.settle().await;
        let before = self.clock.now();
        self.clock.advance_to_next();
        self.settle().await;
        self.clock.now().saturating_since(before)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    fn then(&self, answer: Answer) {
        self.script.lock().unwrap().push_back(answer);
    }

    fn error(&self) -> Option<WatchError> {
        self.health.borrow().error.as_deref().cloned()
    }
}

type Frames = stream::BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>;

fn respond(answer: Answer) -> Response<StreamBody<Frames>> {
    let frames = stream::iter(answer.chunks.into_iter().map(|chunk| Ok(Frame::data(chunk))));
    let tail = match answer.end {
        End::Good => stream::empty().boxed(),
        End::Broken => stream::once(async { Err(std::io::Error::other("cut")) }).boxed(),
        End::Never => stream::pending().boxed(),
        End::Later(more) => more.map(|chunk| Ok(Frame::data(chunk))).boxed(),
    };
    let mut response = Response::builder().status(answer.code);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response
        .body(StreamBody::new(frames.chain(tail).boxed()))
        .unwrap()
}

fn paged() -> ReflectorOptions {
    ReflectorOptions::default().streaming(false)
}

fn has(request: &str, parameter: &str) -> bool {
    request.split(['?', '&']).any(|found| found == parameter)
}

#[tokio::test]
async fn guarantee_2_a_list_after_410_is_not_older_than_the_store() {
    let script = [
        watch_of(
            &[bookmark(9, true), event("ADDED", "a", 12), error_event(410)],
            End::Good,
        ),
        watch_of(&[bookmark(12, true)], End::Never),
    ];
    let scene = Scene::start(ReflectorOptions::default(), script);
    assert_eq!(
        scene.events().await,
        ["begin", "end 9", "changed a", "abandon", "begin", "end 12"]
    );
    let requests = scene.requests();
    assert!(
        has(&requests[1], "resourceVersion=12") && has(&requests[1], "sendInitialEvents=true"),
        "{requests:?}"
    );
    assert!(requests.iter().all(|request| !has(request, "resourceVersion=0")));
}

#[tokio::test]
async fn guarantee_2_accepts_a_quorum_read_at_any_revision() {
    let script = [
        list(&["a"], 20, ""),
        refusal(410),
        list(&["old"], 19, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    let events = scene.events().await;
    let expected = ["begin", "listed a", "end 20", "begin", "listed old", "end 19"];
    assert_eq!(events, expected);
    assert_eq!(scene.error(), None);
    let requests = scene.requests();
    assert!(!requests[2].contains("resourceVersion"), "{requests:?}");
    assert!(has(&requests[3], "resourceVersion=19"), "{requests:?}");
}

// D7
#[tokio::test]
async fn guarantee_2_relists_with_a_quorum_read_after_the_server_moved_backwards() {
    let too_large = || Answer {
        code: 504,
        ..refusal(504)
    };
    let went_back = [bookmark(20, true), bookmark(9, false)];
    let behind = |sent: &str| WatchError::StaleResponse {
        sent: Revision::new(sent),
        seen: Revision::new("20"),
    };
    // A watch shows that the server moved backwards.
    let scene = Scene::start(ReflectorOptions::default(), [watch_of(&went_back, End::Never)]);
    assert_eq!(scene.events().await, ["begin", "end 20", "abandon"]);
    assert_eq!(scene.error(), Some(behind("9")));
    scene.then(list(&["a"], 9, ""));
    scene.then(watch_of(&[], End::Never));
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed a", "end 9"]);
    assert!(!scene.requests()[1].contains("resourceVersion"));

    // An event older than the store shows it too.
    for kind in ["MODIFIED", "DELETED"] {
        let went_back = [bookmark(20, true), event(kind, "older", 9)];
        let scene = Scene::start(ReflectorOptions::default(), [watch_of(&went_back, End::Never)]);
        scene.events().await;
        assert_eq!(scene.error(), Some(behind("9")));
        scene.then(list(&["a"], 9, ""));
        scene.then(watch_of(&[], End::Never));
        scene.wait().await;
        assert_eq!(scene.events().await, ["begin", "listed a", "end 9"]);
    }

    // A streamed list older than requested shows it too.
    let history = [bookmark(20, true), error_event(410)];
    let old = [event("ADDED", "a", 8), bookmark(9, true)];
    let script = [watch_of(&history, End::Good), watch_of(&old, End::Never)];
    let scene = Scene::start(ReflectorOptions::default(), script);
    scene.settle().await;
    assert_eq!(scene.error(), Some(behind("9")));
    scene.then(list(&["a"], 9, ""));
    scene.then(watch_of(&[], End::Never));
    scene.events().await;
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed a", "end 9"]);

    // A server that does not have the revision yet can catch up, but it is not asked forever.
    let mut script = vec![watch_of(&history, End::Good)];
    script.extend((0..3).map(|_| too_large()));
    script.extend([list(&["a"], 9, ""), watch_of(&[], End::Never)]);
    let scene = Scene::start(ReflectorOptions::default(), script);
    for _ in 0..3 {
        scene.wait().await;
    }
    assert_eq!(scene.events().await.last().unwrap(), "end 9");
    assert_eq!(scene.error(), None);
}

#[tokio::test]
async fn guarantee_3_relists_after_410() {
    let script = [
        list(&["a", "b"], 7, ""),
        refusal(410),
        list(&["a"], 8, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    let expected = [
        "begin", "listed a", "listed b", "end 7", "begin", "listed a", "end 8",
    ];
    assert_eq!(scene.events().await, expected, "at once, the first time");
}

#[tokio::test]
async fn relists_without_pages_after_an_expired_page() {
    let script = [
        list(&["a"], 7, "more"),
        refusal(410),
        list(&["a", "b"], 8, ""),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    scene.settle().await;
    let requests = scene.requests();
    assert!(has(&requests[0], "limit=500") && has(&requests[1], "continue=more"));
    assert!(
        !requests[2].contains("limit=") && !requests[2].contains("continue="),
        "{requests:?}"
    );
    assert_eq!(scene.events().await.last().unwrap(), "end 8");
}

#[tokio::test]
async fn guarantee_1_resumes_a_watch_from_the_last_revision() {
    let script = [
        list(&[], 5, ""),
        watch_of(&[event("ADDED", "a", 6), bookmark(9, false)], End::Good),
        watch_of(&[event("DELETED", "a", 11)], End::Broken),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    assert_eq!(
        scene.events().await,
        ["begin", "end 5", "changed a", "progressed 9", "deleted a"]
    );
    let requests = scene.requests();
    let from: Vec<bool> = [5, 9, 11]
        .iter()
        .zip(&requests[1..])
        .map(|(revision, request)| has(request, &format!("resourceVersion={revision}")))
        .collect();
    assert_eq!(from, [true, true, true], "{requests:?}");
}

#[tokio::test]
async fn guarantee_1_ignores_an_incomplete_line() {
    let half = &event("ADDED", "b", 7)[..20];
    let broken = Answer {
        end: End::Broken,
        ..answer(200, &format!("{}\n{half}", event("ADDED", "a", 6)))
    };
    let scene = Scene::start(
        paged(),
        [
            list(&[], 5, ""),
            broken,
            watch_of(&[event("ADDED", "b", 7)], End::Never),
        ],
    );
    assert_eq!(scene.events().await, ["begin", "end 5", "changed a", "changed b"]);
    assert!(has(&scene.requests()[2], "resourceVersion=6"));
}

// R150
#[tokio::test]
async fn guarantee_6_one_bad_object_does_not_stop_the_stream() {
    let bad = r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#.to_owned();
    let scene = Scene::start(
        paged(),
        [
            list(&[], 5, ""),
            watch_of(&[bad, event("ADDED", "a", 6)], End::Never),
        ],
    );
    let events = scene.events().await;
    assert!(events[2].starts_with("invalid: "), "{events:?}");
    assert_eq!(events[3], "changed a");
}

#[tokio::test]
async fn reads_a_watch_in_several_gzip_members() {
    let member = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        Bytes::from(encoder.finish().unwrap())
    };
    let mut chunks = vec![member(&format!("{}\n", bookmark(1, true)))];
    chunks.push(member(&format!("{}\n", event("ADDED", "a", 2))));
    let split = member(&format!("{}\n", event("ADDED", "b", 3)));
    chunks.extend([split.slice(..7), split.slice(7..)]);
    let gzip = Answer {
        chunks,
        headers: vec![("content-encoding", "gzip")],
        end: End::Never,
        ..answer(200, "")
    };
    let scene = Scene::start(ReflectorOptions::default().compressed(true), [gzip]);
    assert_eq!(scene.events().await, ["begin", "end 1", "changed a", "changed b"]);
}

#[tokio::test]
async fn a_silent_list_times_out() {
    let stalled = Answer {
        end: End::Never,
        ..answer(200, r#"{"items":["#)
    };
    let scene = Scene::start(paged(), [stalled, list(&["a"], 5, ""), watch_of(&[], End::Never)]);
    assert_eq!(scene.wait().await, Duration::from_secs(75));
    assert_eq!(
        scene.error(),
        Some(WatchError::IdleTimeout {
            limit: Duration::from_secs(75)
        })
    );
    scene.wait().await;
    assert_eq!(
        scene.events().await,
        ["begin", "abandon", "begin", "listed a", "end 5"]
    );
}

#[tokio::test]
async fn polls_a_resource_without_the_watch_verb() {
    let every = Duration::from_secs(30);
    let scene = Scene::start(ReflectorOptions::default().poll(every), [list(&["a"], 5, "")]);
    assert_eq!(scene.events().await, ["begin", "listed a", "end 5"]);
    scene.then(list(&["b"], 6, ""));
    assert_eq!(scene.wait().await, every);
    assert_eq!(scene.events().await, ["begin", "listed b", "end 6"]);
    let requests = scene.requests();
    assert_eq!(requests.len(), 2);
    assert!(
        requests.iter().all(|request| !request.contains("watch")),
        "{requests:?}"
    );
}

#[tokio::test]
async fn an_interval_of_zero_disables_relists() {
    let options = ReflectorOptions::default()
        .poll(Duration::ZERO)
        .relist(Duration::ZERO);
    let scene = Scene::start(options, [watch_of(&[bookmark(5, true)], End::Never)]);
    assert_eq!(scene.events().await, ["begin", "end 5"]);
    assert_eq!(scene.requests().len(), 1, "it watches, and lists no more");
}

// R114
#[tokio::test]
async fn periodic_relists_recover_a_lost_event() {
    let every = Duration::from_secs(600);
    let scene = Scene::start(
        paged().relist(every),
        [
            list(&["a", "b"], 5, ""),
            watch_of(&[bookmark(6, false)], End::Never),
        ],
    );
    assert_eq!(
        scene.events().await,
        ["begin", "listed a", "listed b", "end 5", "progressed 6"]
    );
    // `b` was deleted and `c` was created, and the watch reports neither.
    scene.then(list(&["a", "c"], 9, ""));
    scene.then(watch_of(&[event("MODIFIED", "c", 10)], End::Never));
    let mut waits = Vec::new();
    let mut events = Vec::new();
    while events.is_empty() {
        waits.push(scene.wait().await);
        events = scene.events().await;
    }
    assert_eq!(events, ["begin", "listed a", "listed c", "end 9", "changed c"]);
    let waited: Duration = waits.iter().sum();
    assert!(
        waited >= every.mul_f64(0.9) && waited <= every.mul_f64(1.1),
        "{waits:?}"
    );
    assert_ne!(waited, every, "not all come at once");
    assert_eq!(scene.error(), None);
}

// D1
#[tokio::test]
async fn guarantee_3_relists_after_a_watch_without_revisions() {
    let item = |name: &str| format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns"}}}}"#);
    let list = |names: &[&str]| {
        let items: Vec<String> = names.iter().map(|name| item(name)).collect();
        answer(
            200,
            &format!(
                r#"{{"kind":"List","metadata":{{}},"items":[{}]}}"#,
                items.join(",")
            ),
        )
    };
    let modified = format!(r#"{{"type":"MODIFIED","object":{}}}"#, item("a"));
    let script = [
        list(&["a", "b"]),
        watch_of(&[modified], End::Good),
        // It ended immediately, which costs a delay.
        list(&["a"]),
        // A watch that cannot be opened misses deletions as well.
        refusal(503),
        list(&[]),
        watch_of(&[], End::Never),
    ];
    let scene = Scene::start(paged(), script);
    assert_eq!(
        scene.events().await,
        ["begin", "listed a", "listed b", "end ", "changed a"]
    );
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "listed a", "end "]);
    scene.wait().await;
    assert_eq!(scene.events().await, ["begin", "end "]);
    let requests = scene.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.contains("resourceVersion=")),
        "{requests:?}"
    );
}
