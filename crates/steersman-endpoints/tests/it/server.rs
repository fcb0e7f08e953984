// SPDX-License-Identifier: Apache-2.0
//! Addresses, limits and shutdown of a server.

use std::{convert::Infallible, error::Error as _, io::ErrorKind, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::channel::mpsc;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use steersman_core::TestClock;
use steersman_endpoints::{
    BindError, HttpHandler, HttpRequest, HttpResponse, Routes, ServeError, Server, Tls, read_body,
    text_response,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

use crate::support::{HERE, Running, get, hello, next_deadline_in, over, real_time, send};

const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const WRITE_TIMEOUT: Duration = Duration::from_secs(90);
const BODY_TIMEOUT: Duration = Duration::from_secs(32);

/// A handler that reports its call to the first semaphore and waits for a permit of the second.
fn blocking() -> (HttpHandler, Arc<Semaphore>, Arc<Semaphore>) {
    let (called, permits) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (calling, waiting) = (Arc::clone(&called), Arc::clone(&permits));
    let handler = HttpHandler::new(move |_| {
        let (calling, waiting) = (Arc::clone(&calling), Arc::clone(&waiting));
        async move {
            calling.add_permits(1);
            waiting.acquire().await.unwrap().forget();
            Response::new(Full::new(Bytes::from("done")))
        }
    });
    (handler, called, permits)
}

fn routes(path: &str, handler: HttpHandler) -> Routes {
    let mut routes = Routes::new();
    routes.add(path, handler).unwrap();
    routes
}

fn on_clock(clock: &TestClock, path: &str, handler: HttpHandler) -> Running {
    Running::start(Server::bind(HERE, routes(path, handler), Arc::new(clock.clone())).unwrap())
}

/// Sends a request over a connection that stays open, and reads the response.
async fn request(stream: &mut TcpStream) {
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"hello") {
        stream.read_buf(&mut response).await.unwrap();
    }
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 64]).await.map_or(true, |read| read == 0)
}

#[tokio::test]
async fn guarantee_1_bind_fails_if_the_address_is_in_use() {
    let first = Server::bind(HERE, Routes::new(), real_time()).unwrap();
    let address = first.address();
    let error = Server::bind(address, Routes::new(), real_time()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {address}: the address is in use; stop the other program or choose another port"
        )
    );
    assert!(matches!(error, BindError::AddressInUse { .. }));
    assert!(error.source().is_some());
    drop(first);
    Server::bind(address, Routes::new(), real_time()).unwrap();
}

#[tokio::test]
async fn bind_fails_for_an_address_of_another_machine() {
    let foreign = "192.0.2.1:80".parse().unwrap();
    let error = Server::bind(foreign, Routes::new(), real_time()).unwrap_err();
    assert!(matches!(error, BindError::Unavailable { .. }), "{error:?}");
    let expected = "cannot listen on 192.0.2.1:80; choose an address";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[tokio::test]
async fn serves_a_client_that_connected_before_serve() {
    let server = Server::bind(HERE, routes("/", hello()), real_time()).unwrap();
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let _running = Running::start(server);
    let reply = over(stream, Request::get("/").body(Full::default()).unwrap()).await;
    assert_eq!(reply.parts(), (200, "hello"));
}

#[tokio::test]
async fn guarantee_2_dropping_the_future_closes_all_connections() {
    let (handler, called, _permits) = blocking();
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
async fn guarantee_3_shutdown_completes_requests_and_accepts_no_connections() {
    let (handler, called, permits) = blocking();
    let running = Running::of(routes("/", handler));
    let address = running.address;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let request = tokio::task::JoinSet::from_iter([get(address, "/")]);
    called.acquire().await.unwrap().forget();
    let mut serving = running.request_shutdown();
    assert!(is_closed(&mut idle).await);
    assert_eq!(
        TcpStream::connect(address).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(serving.try_join_next().is_none());
    permits.add_permits(1);
    assert_eq!(request.join_all().await[0].parts(), (200, "done"));
    serving.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn guarantee_3_shutdown_closes_connections_at_the_deadline() {
    let clock = TestClock::new();
    let (handler, called, _permits) = blocking();
    let running = on_clock(&clock, "/", handler);
    let address = running.address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    called.acquire().await.unwrap().forget();
    let mut serving = running.request_shutdown();
    next_deadline_in(&clock, Duration::from_secs(10)).await;
    clock.advance(Duration::from_secs(10));
    let error = serving.join_next().await.unwrap().unwrap().unwrap_err();
    assert!(matches!(
        error,
        ServeError::ShutdownTimeout { connections: 1, .. }
    ));
    assert_eq!(
        error.to_string(),
        format!("shutdown of {address} timed out after 10s: 1 connection(s) were closed")
    );
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn guarantee_4_closes_a_new_connection_that_sends_nothing() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    next_deadline_in(&clock, HEADER_TIMEOUT).await;
    clock.advance(HEADER_TIMEOUT);
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn guarantee_4_closes_a_connection_whose_header_is_slow() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    request(&mut slow).await;
    next_deadline_in(&clock, IDLE_TIMEOUT).await;
    slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    next_deadline_in(&clock, HEADER_TIMEOUT).await;
    clock.advance(HEADER_TIMEOUT / 2);
    slow.write_all(b"host: x\r\n").await.unwrap();
    clock.advance(HEADER_TIMEOUT / 2);
    assert!(is_closed(&mut slow).await);
}

#[tokio::test]
async fn guarantee_4_closes_an_idle_connection_after_the_idle_timeout() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", hello());
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for _ in 0..2 {
        request(&mut stream).await;
        next_deadline_in(&clock, IDLE_TIMEOUT).await;
        clock.advance(IDLE_TIMEOUT - Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(1));
    assert!(is_closed(&mut stream).await);
}

#[tokio::test]
async fn a_slow_handler_is_not_interrupted() {
    let clock = TestClock::new();
    let (handler, called, permits) = blocking();
    let running = on_clock(&clock, "/", handler);
    let request = tokio::task::JoinSet::from_iter([get(running.address, "/")]);
    called.acquire().await.unwrap().forget();
    // The header is complete, so no timeout runs.
    while clock.next_deadline().is_some() {
        tokio::task::yield_now().await;
    }
    clock.advance(10 * IDLE_TIMEOUT);
    permits.add_permits(1);
    assert_eq!(request.join_all().await[0].parts(), (200, "done"));
}

#[tokio::test]
async fn guarantee_5_rejects_a_header_that_is_too_large() {
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

async fn panicking(_: HttpRequest) -> HttpResponse {
    panic!("a panic of the test's handler")
}

#[tokio::test]
async fn a_panic_of_a_handler_closes_only_its_connection() {
    let mut routes = routes("/", hello());
    routes.add("/panics", HttpHandler::new(panicking)).unwrap();
    let running = Running::of(routes);
    let mut other = TcpStream::connect(running.address).await.unwrap();
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream
        .write_all(b"GET /panics HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(is_closed(&mut stream).await);
    request(&mut other).await;
}

#[tokio::test]
async fn a_tower_service_responds_and_its_error_is_withheld() {
    let responding = tower::service_fn(|request: HttpRequest| async move {
        let body = format!("{} {}", request.method(), request.uri().path());
        Ok::<_, Infallible>(Response::new(body))
    });
    let failing = tower::service_fn(|_| async { Err::<Response<String>, _>("secret") });
    let mut routes = routes("/below/", HttpHandler::service(responding));
    routes.add("/fails", HttpHandler::service(failing)).unwrap();
    let running = Running::of(routes);
    assert_eq!(running.get("/below/a/b").await.parts(), (200, "GET /below/a/b"));
    assert_eq!(
        running.get("/fails").await.parts(),
        (500, "internal server error\n")
    );
    assert_eq!(running.get("/below").await.status, 404);
}

#[tokio::test]
async fn guarantee_4_closes_a_connection_whose_tls_handshake_is_slow() {
    let clock = TestClock::new();
    let server = Server::bind(HERE, routes("/", hello()), Arc::new(clock.clone())).unwrap();
    let running = Running::start(server.tls(Tls::self_signed().unwrap()));
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    next_deadline_in(&clock, HEADER_TIMEOUT).await;
    clock.advance(HEADER_TIMEOUT);
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn guarantee_3_shutdown_does_not_wait_for_a_tls_handshake() {
    let clock = TestClock::new();
    let server = Server::bind(HERE, routes("/", hello()), Arc::new(clock.clone())).unwrap();
    let running = Running::start(server.tls(Tls::self_signed().unwrap()));
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    next_deadline_in(&clock, HEADER_TIMEOUT).await;
    let mut serving = running.request_shutdown();
    serving.join_next().await.unwrap().unwrap().unwrap();
    assert!(is_closed(&mut silent).await);
}

/// Exceeds the buffers of both sockets.
const LARGE: usize = 64 << 20;

/// Requests a large response without reading it.
async fn request_large(clock: &TestClock) -> (Running, TcpStream) {
    let large = HttpHandler::new(|_| async { Response::new(Full::new(Bytes::from(vec![b'a'; LARGE]))) });
    let running = on_clock(clock, "/", large);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    next_deadline_in(clock, WRITE_TIMEOUT).await;
    (running, stream)
}

#[tokio::test]
async fn guarantee_7_closes_a_connection_whose_client_does_not_read() {
    let clock = TestClock::new();
    let (_running, mut stalled) = request_large(&clock).await;
    clock.advance(WRITE_TIMEOUT);
    let mut received = Vec::new();
    // The connection ends with an error or an end of file, depending on the platform.
    let _ = stalled.read_to_end(&mut received).await;
    assert!(received.len() < LARGE);
}

#[tokio::test]
async fn guarantee_7_serves_a_client_that_reads_slowly() {
    let clock = TestClock::new();
    let (_running, mut slow) = request_large(&clock).await;
    for _ in 0..4 {
        clock.advance(WRITE_TIMEOUT - Duration::from_secs(1));
        slow.read_exact(&mut vec![0; LARGE / 4]).await.unwrap();
    }
}

/// A handler that returns the body of a request of at most 8 bytes.
fn echo() -> HttpHandler {
    HttpHandler::new(|request| async move {
        match read_body(request.into_body(), 8).await {
            Ok(body) => text_response(StatusCode::OK, body),
            Err(error) => error.response(),
        }
    })
}

#[tokio::test]
async fn read_body_limits_the_size() {
    let running = Running::of(routes("/", echo()));
    let post = async |body: &'static str| {
        let request = Request::post("/").body(Full::new(Bytes::from(body))).unwrap();
        send(running.address, request).await
    };
    assert_eq!(post("12345678").await.parts(), (200, "12345678"));
    assert_eq!(
        post("123456789").await.parts(),
        (413, "the request body exceeds 8 bytes\n")
    );
}

#[tokio::test]
async fn guarantee_6_a_request_body_that_is_slow_fails() {
    let clock = TestClock::new();
    let running = on_clock(&clock, "/", echo());
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    slow.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 8\r\n\r\n1")
        .await
        .unwrap();
    next_deadline_in(&clock, BODY_TIMEOUT).await;
    clock.advance(BODY_TIMEOUT);
    let mut response = String::new();
    slow.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    assert!(
        response.ends_with("\r\n\r\nthe request body did not arrive within 32s\n"),
        "{response}"
    );
}

#[tokio::test]
async fn a_streaming_response_stays_open_between_its_parts() {
    let clock = TestClock::new();
    let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let streaming = HttpHandler::new(move |_| {
        let parts = receiver.lock().unwrap().take().unwrap();
        async move { Response::new(StreamBody::new(parts)) }
    });
    let running = on_clock(&clock, "/", streaming);
    let mut sender = sender;
    let mut send_part = |text: &'static str| sender.try_send(Ok(Frame::data(Bytes::from(text)))).unwrap();
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    for part in ["first", "second"] {
        send_part(part);
        let mut received = Vec::new();
        while !received.ends_with(format!("{part}\r\n").as_bytes()) {
            stream.read_buf(&mut received).await.unwrap();
        }
        assert_eq!(clock.next_deadline(), None);
        clock.advance(10 * IDLE_TIMEOUT);
    }
}
