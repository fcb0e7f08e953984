// SPDX-License-Identifier: Apache-2.0
//! HTTP/2 has the limits of HTTP/1.1.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use steersman_core::TestClock;
use steersman_endpoints::{HttpHandler, HttpRequest, Routes, Server, Tls, read_body, text_response};
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet};

use crate::support::{HERE, Running, hello, identities::connector, next_deadline_in, real_time};

const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const WRITE_TIMEOUT: Duration = Duration::from_secs(90);
const BODY_TIMEOUT: Duration = Duration::from_secs(32);
const GOODBYE: Duration = Duration::from_secs(1);

type RequestBody = BoxBody<Bytes, std::convert::Infallible>;

/// An HTTP/2 connection.
struct Client {
    sender: http2::SendRequest<RequestBody>,
    driving: JoinSet<hyper::Result<()>>,
}

impl Client {
    async fn connect(running: &Running) -> Self {
        Self::connect_with(running, http2::Builder::new(TokioExecutor::new())).await
    }

    async fn connect_with(running: &Running, builder: http2::Builder<TokioExecutor>) -> Self {
        let stream = TcpStream::connect(running.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = connector(None, &[b"h2", b"http/1.1"]);
        let stream = connector.connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let mut driving = JoinSet::new();
        driving.spawn(connection);
        Self { sender, driving }
    }

    async fn send(&self, request: http::request::Builder) -> hyper::Result<Response<Incoming>> {
        self.send_body(request, Empty::new().boxed()).await
    }

    async fn send_body(
        &self,
        request: http::request::Builder,
        body: RequestBody,
    ) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.sender.clone();
        sender.ready().await?;
        sender.send_request(request.body(body).unwrap()).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = self.send(request(path)).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Waits until the server closes the connection.
    async fn closed(mut self) {
        let _ = self.driving.join_next().await;
    }
}

fn request(path: &str) -> http::request::Builder {
    Request::get(format!("https://localhost{path}"))
}

fn serve(clock: Option<&TestClock>, path: &str, handler: HttpHandler) -> Running {
    let mut routes = Routes::new();
    routes.add(path, handler).unwrap();
    let clock = clock.map_or_else(real_time, |clock| Arc::new(clock.clone()));
    let server = Server::bind(HERE, routes, clock).unwrap();
    Running::start(server.tls(Tls::self_signed().unwrap()))
}

/// A handler that reports its call to the first semaphore, waits for a permit of the second, and reports its end to the third.
fn blocking() -> (HttpHandler, [Arc<Semaphore>; 3]) {
    struct End(Arc<Semaphore>);
    impl Drop for End {
        fn drop(&mut self) {
            self.0.add_permits(1);
        }
    }
    let semaphores = [(); 3].map(|()| Arc::new(Semaphore::new(0)));
    let of_handler = semaphores.clone();
    let handler = HttpHandler::new(move |_| {
        let [called, permits, ended] = of_handler.clone();
        async move {
            let _end = End(ended);
            called.add_permits(1);
            permits.acquire().await.unwrap().forget();
            Response::new(Full::new(Bytes::from("done")))
        }
    });
    (handler, semaphores)
}

// C6
#[tokio::test]
async fn serves_concurrent_requests_on_one_connection() {
    let (handler, [called, permits, _]) = blocking();
    let running = serve(None, "/", handler);
    let client = Client::connect(&running).await;
    let both = async { tokio::join!(client.get("/"), client.get("/")) };
    let release = async {
        called.acquire_many(2).await.unwrap().forget();
        permits.add_permits(2);
    };
    let (replies, ()) = tokio::join!(both, release);
    let done = (200, "done".to_owned());
    assert_eq!(replies, (done.clone(), done));
}

// C6
#[tokio::test]
async fn guarantee_2_dropping_the_future_ends_the_requests() {
    let (handler, [called, _permits, ended]) = blocking();
    let running = serve(None, "/", handler);
    let client = Client::connect(&running).await;
    let sent = client.send(request("/"));
    let drop_server = async {
        called.acquire().await.unwrap().forget();
        drop(running);
        ended.acquire().await.unwrap().forget();
    };
    let (response, ()) = tokio::join!(sent, drop_server);
    response.unwrap_err();
    client.closed().await;
}

// C6
#[tokio::test]
async fn guarantee_3_shutdown_completes_requests() {
    let (handler, [called, permits, _]) = blocking();
    let running = serve(None, "/", handler);
    let (client, idle) = (Client::connect(&running).await, Client::connect(&running).await);
    let shut_down = async {
        called.acquire().await.unwrap().forget();
        let mut serving = running.request_shutdown();
        idle.closed().await;
        assert!(serving.try_join_next().is_none());
        permits.add_permits(1);
        serving.join_next().await.unwrap().unwrap().unwrap();
    };
    let (reply, ()) = tokio::join!(client.get("/"), shut_down);
    assert_eq!(reply, (200, "done".to_owned()));
}

// C6
#[tokio::test]
async fn guarantee_4_closes_a_connection_without_requests() {
    let clock = TestClock::new();
    let running = serve(Some(&clock), "/", hello());
    let silent = Client::connect(&running).await;
    next_deadline_in(&clock, HEADER_TIMEOUT).await;
    clock.advance(HEADER_TIMEOUT);
    silent.closed().await;

    let idle = Client::connect(&running).await;
    assert_eq!(idle.get("/").await, (200, "hello".to_owned()));
    next_deadline_in(&clock, IDLE_TIMEOUT).await;
    clock.advance(IDLE_TIMEOUT - Duration::from_secs(1));
    assert_eq!(idle.get("/").await.0, 200);
    next_deadline_in(&clock, IDLE_TIMEOUT).await;
    clock.advance(IDLE_TIMEOUT);
    idle.closed().await;
}

// C6
#[tokio::test]
async fn guarantee_4_a_handler_is_not_idle() {
    let clock = TestClock::new();
    let (handler, [called, permits, _]) = blocking();
    let running = serve(Some(&clock), "/", handler);
    let client = Client::connect(&running).await;
    let wait = async {
        called.acquire().await.unwrap().forget();
        clock.advance(IDLE_TIMEOUT * 2);
        permits.add_permits(1);
    };
    let (reply, ()) = tokio::join!(client.get("/"), wait);
    assert_eq!(reply, (200, "done".to_owned()));
}

// C6
#[tokio::test]
async fn guarantee_5_a_long_header_gets_431() {
    let running = serve(None, "/", hello());
    let client = Client::connect(&running).await;
    let long = request("/").header("x-long", "x".repeat(70 << 10));
    let response = client.send(long).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}

// C6
#[tokio::test]
async fn guarantee_6_a_slow_request_body_fails() {
    let clock = TestClock::new();
    let read = HttpHandler::new(|request: HttpRequest| async move {
        match read_body(request.into_body(), 1 << 20).await {
            Ok(_) => text_response(StatusCode::OK, "read"),
            Err(error) => error.response(),
        }
    });
    let running = serve(Some(&clock), "/", read);
    let client = Client::connect(&running).await;
    // After it, the deadline of the first header is over.
    assert_eq!(client.get("/").await, (200, "read".to_owned()));
    let never = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, _>>());
    let request = Request::post("https://localhost/");
    let time_out = async {
        next_deadline_in(&clock, BODY_TIMEOUT).await;
        clock.advance(BODY_TIMEOUT);
    };
    let (response, ()) = tokio::join!(client.send_body(request, BodyExt::boxed(never)), time_out);
    assert_eq!(response.unwrap().status(), StatusCode::REQUEST_TIMEOUT);
}

// C6
#[tokio::test]
async fn guarantee_7_closes_a_connection_that_accepts_no_data() {
    let clock = TestClock::new();
    let large = HttpHandler::new(|_| async { Response::new(Full::new(Bytes::from(vec![b'x'; 4 << 20]))) });
    let running = serve(Some(&clock), "/", large);
    let mut small = http2::Builder::new(TokioExecutor::new());
    small.initial_stream_window_size(64 << 10);
    let client = Client::connect_with(&running, small).await;
    // The client does not read the body.
    let response = client.send(request("/")).await.unwrap();
    next_deadline_in(&clock, WRITE_TIMEOUT).await;
    clock.advance(WRITE_TIMEOUT);
    next_deadline_in(&clock, GOODBYE).await;
    clock.advance(GOODBYE);
    client.closed().await;
    assert!(response.into_body().collect().await.is_err());
}

// C6
#[tokio::test]
async fn a_client_that_reads_gets_a_large_response() {
    let large = HttpHandler::new(|_| async { Response::new(Full::new(Bytes::from(vec![b'x'; 4 << 20]))) });
    let running = serve(None, "/", large);
    let client = Client::connect(&running).await;
    let (status, body) = client.get("/").await;
    assert_eq!((status, body.len()), (200, 4 << 20));
}

// C6
#[tokio::test]
async fn a_panic_ends_only_its_request() {
    let panicking = HttpHandler::new(|request: HttpRequest| async move {
        assert!(request.uri().path() != "/panic", "a panic of the test");
        text_response(StatusCode::OK, "fine")
    });
    let running = serve(None, "/", panicking);
    let client = Client::connect(&running).await;
    assert!(client.send(request("/panic")).await.is_err());
    assert_eq!(client.get("/").await, (200, "fine".to_owned()));
}
