// SPDX-License-Identifier: Apache-2.0
//! Sockets, limits and the end of a server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{convert::Infallible, error::Error as _, io::ErrorKind, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use steersman_core::TestClock;
use steersman_manager::{BindError, Handler, Routes, ServeError, Server};
use support::{HERE, Running, get, over, real_time, send, waits_for};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

const HEADER: Duration = Duration::from_secs(32);
const IDLE: Duration = Duration::from_secs(90);

fn hello() -> Handler {
    Handler::new(|_| async { Response::new(Full::new(Bytes::from("hello"))) })
}

/// A handler that says that it was called and then waits for a permit.
fn held() -> (Handler, Arc<Semaphore>, Arc<Semaphore>) {
    let (called, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (calling, waiting) = (Arc::clone(&called), Arc::clone(&permits));
    let handler = Handler::new(move |_| {
        let (calling, waiting) = (Arc::clone(&calling), Arc::clone(&waiting));
        async move {
            calling.add_permits(1);
            waiting.acquire().await.unwrap().forget();
            Response::new(Full::new(Bytes::from("done")))
        }
    });
    (handler, called, permits)
}

fn routes(path: &str, handler: Handler) -> Routes {
    let mut routes = Routes::new();
    routes.add(path, handler).unwrap();
    routes
}

fn on_clock(clock: &TestClock, path: &str, handler: Handler) -> Running {
    Running::start(Server::bind(HERE, routes(path, handler), Arc::new(clock.clone())).unwrap())
}

/// Sends a request on a connection that stays open, and reads the answer.
async fn ask(stream: &mut TcpStream) {
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"hello") {
        stream.read_buf(&mut answer).await.unwrap();
    }
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 64]).await.map_or(true, |read| read == 0)
}

#[tokio::test]
async fn guarantee_1_a_taken_address_is_an_error_at_once_that_says_what_to_do() {
    let first = Server::bind(HERE, Routes::new(), real_time()).unwrap();
    let address = first.address();
    let error = Server::bind(address, Routes::new(), real_time()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{address} is taken by another program: end that one, or name another port")
    );
    assert!(matches!(error, BindError::Taken { .. }));
    assert!(error.source().is_some());
    drop(first);
    Server::bind(address, Routes::new(), real_time()).unwrap();
}

#[tokio::test]
async fn an_address_of_another_machine_is_an_error() {
    let foreign = "192.0.2.1:80".parse().unwrap();
    let error = Server::bind(foreign, Routes::new(), real_time()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot listen on 192.0.2.1:80: name an address")
    );
}

#[tokio::test]
async fn who_comes_before_the_server_serves_is_answered() {
    let server = Server::bind(HERE, routes("/", hello()), real_time()).unwrap();
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let _running = Running::start(server);
    let reply = over(stream, Request::get("/").body(Full::default()).unwrap()).await;
    assert_eq!(reply.parts(), (200, "hello"));
}

#[tokio::test]
async fn guarantee_2_dropping_the_server_cuts_its_connections() {
    let (handler, called, _permits) = held();
    let running = Running::of(routes("/", handler));
    let address = running.address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    called.acquire().await.unwrap().forget();
    drop(running);
    assert!(is_closed(&mut stream).await);
    assert_eq!(
        TcpStream::connect(address).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
}

#[tokio::test]
async fn guarantee_3_a_stopping_server_answers_what_it_has_and_takes_nothing_new() {
    let (handler, called, permits) = held();
    let running = Running::of(routes("/", handler));
    let address = running.address;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let asked = tokio::task::JoinSet::from_iter([get(address, "/")]);
    called.acquire().await.unwrap().forget();
    let mut serving = running.tell_to_stop();
    assert!(is_closed(&mut idle).await);
    assert_eq!(
        TcpStream::connect(address).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(serving.try_join_next().is_none());
    permits.add_permits(1);
    assert_eq!(asked.join_all().await[0].parts(), (200, "done"));
    serving.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn guarantee_3_what_does_not_end_is_cut_at_the_deadline() {
    let clock = TestClock::new();
    let (handler, called, _permits) = held();
    let running = on_clock(&clock, "/", handler);
    let address = running.address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    called.acquire().await.unwrap().forget();
    let mut serving = running.tell_to_stop();
    waits_for(&clock, Duration::from_secs(10)).await;
    clock.advance(Duration::from_secs(10));
    let error = serving.join_next().await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, ServeError::NotDrained { connections: 1, .. }));
    assert_eq!(
        error.to_string(),
        format!("1 connection(s) to {address} were cut, since they did not end within 10s")
    );
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn guarantee_4_who_says_nothing_is_cut_after_the_time_for_a_header() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    waits_for(&clock, HEADER).await;
    clock.advance(HEADER);
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn guarantee_4_a_header_may_not_trickle_for_ever() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    ask(&mut slow).await;
    waits_for(&clock, IDLE).await;
    slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    waits_for(&clock, HEADER).await;
    clock.advance(HEADER / 2);
    slow.write_all(b"host: x\r\n").await.unwrap();
    clock.advance(HEADER / 2);
    assert!(is_closed(&mut slow).await);
}

#[tokio::test]
async fn guarantee_4_a_connection_may_wait_longer_for_its_next_request() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for _ in 0..2 {
        ask(&mut stream).await;
        waits_for(&clock, IDLE).await;
        clock.advance(IDLE - Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(1));
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_handler_may_take_its_time() {
    let clock = TestClock::new();
    let (handler, called, permits) = held();
    let running = on_clock(&clock, "/", handler);
    let asked = tokio::task::JoinSet::from_iter([get(running.address, "/")]);
    called.acquire().await.unwrap().forget();
    // Nobody waits for the time any more once the header is read.
    while clock.next_deadline().is_some() {
        tokio::task::yield_now().await;
    }
    clock.advance(10 * IDLE);
    permits.add_permits(1);
    assert_eq!(asked.join_all().await[0].parts(), (200, "done"));
}

#[tokio::test]
async fn guarantee_5_a_header_that_is_too_large_is_refused() {
    let running = Running::of(routes("/", hello()));
    let large = |bytes: usize| {
        Request::get("/")
            .header("x", "a".repeat(bytes))
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(send(running.address, large(1 << 19)).await.status, 200);
    assert_eq!(send(running.address, large(1 << 20)).await.status, 431);
}

#[tokio::test]
async fn a_panicking_handler_takes_only_its_own_connection_along() {
    let mut routes = routes("/", hello());
    let panicking = Handler::new(|_| async { panic!("a handler that the test breaks") });
    routes.add("/panics", panicking).unwrap();
    let running = Running::of(routes);
    let mut other = TcpStream::connect(running.address).await.unwrap();
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream
        .write_all(b"GET /panics HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(is_closed(&mut stream).await);
    ask(&mut other).await;
}

#[tokio::test]
async fn a_tower_service_answers_and_its_failure_is_withheld() {
    let answering = tower::service_fn(|request: steersman_manager::Request| async move {
        let body = format!("{} {}", request.method(), request.uri().path());
        Ok::<_, Infallible>(Response::new(body))
    });
    let failing = tower::service_fn(|_| async { Err::<Response<String>, _>("secret") });
    let mut routes = routes("/below/", Handler::service(answering));
    routes.add("/fails", Handler::service(failing)).unwrap();
    let running = Running::of(routes);
    assert_eq!(running.get("/below/a/b").await.parts(), (200, "GET /below/a/b"));
    assert_eq!(
        running.get("/fails").await.parts(),
        (500, "internal server error\n")
    );
    assert_eq!(running.get("/below").await.status, 404);
}
