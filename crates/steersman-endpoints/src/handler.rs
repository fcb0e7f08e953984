// SPDX-License-Identifier: Apache-2.0
//! HTTP handlers, and functions that read request bodies and build responses.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use steersman_core::error_chain;
use tower::{Service, ServiceExt};

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request or response body. It can be a stream.
///
/// A type of its own instead of an alias: the compiler cannot prove that futures with `Box<dyn Error>` in a type parameter
/// are `Send` (rust-lang/rust#64552).
#[derive(Debug)]
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

/// A request with its body, which has not been read yet; [`read_body`] reads it.
pub type HttpRequest = http::Request<Body>;

/// A response with its body.
pub type HttpResponse = http::Response<Body>;

type Responding = Pin<Box<dyn Future<Output = HttpResponse> + Send>>;

/// Responds to HTTP requests. Clones share one handler.
#[derive(Clone)]
pub struct HttpHandler(pub(crate) Arc<dyn Fn(HttpRequest) -> Responding + Send + Sync>);

/// A request body could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body exceeds the size limit.
    #[error("the request body exceeds {limit} bytes")]
    TooLarge {
        /// Size limit in bytes.
        limit: usize,
    },
    /// The client did not send the body in time.
    #[error("the request body did not arrive within {limit:?}")]
    TimedOut {
        /// Time limit of the server.
        limit: Duration,
    },
    /// The connection failed.
    #[error("cannot read the request body")]
    Read(#[source] BoxError),
}

/// The error that a request body returns when the client did not send it in time.
#[derive(Debug, thiserror::Error)]
#[error("the request body did not arrive within {limit:?}")]
pub(crate) struct BodyTimeout {
    pub(crate) limit: Duration,
}

impl HttpHandler {
    /// Creates a handler from an async function.
    ///
    /// The response can have any body of bytes, for example `http_body_util::StreamBody` for a streaming response.
    pub fn new<F, Fut, B>(respond: F) -> Self
    where
        F: Fn(HttpRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = http::Response<B>> + Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Arc::new(move |request| {
            let responding = respond(request);
            Box::pin(async move { responding.await.map(Body::new) })
        }))
    }

    /// Creates a handler from a tower service, such as a router of a web framework.
    ///
    /// If the service fails, the client gets status 500, and the log the error.
    pub fn service<S, B>(service: S) -> Self
    where
        S: Service<HttpRequest, Response = http::Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Arc::new(move |request| {
            let service = service.clone();
            Box::pin(async move {
                match service.oneshot(request).await {
                    Ok(response) => response.map(Body::new),
                    Err(error) => {
                        let error: BoxError = error.into();
                        tracing::error!(error = error_chain(&*error), "HTTP service failed");
                        text_response(StatusCode::INTERNAL_SERVER_ERROR, "internal server error\n")
                    }
                }
            })
        }))
    }

    /// Creates a handler that passes a request on only if `filter` returns it; otherwise it sends the returned response.
    pub(crate) fn filtered<F, Fut>(self, filter: F) -> Self
    where
        F: Fn(HttpRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<HttpRequest, HttpResponse>> + Send + 'static,
    {
        Self(Arc::new(move |request| {
            let (filtering, handler) = (filter(request), self.clone());
            Box::pin(async move {
                match filtering.await {
                    Ok(request) => handler.respond(request).await,
                    Err(response) => response,
                }
            })
        }))
    }

    pub(crate) async fn respond(&self, request: HttpRequest) -> HttpResponse {
        (self.0)(request).await
    }
}

impl fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpHandler").finish_non_exhaustive()
    }
}

impl Body {
    /// Wraps any body of bytes, such as `http_body_util::Full` or `http_body_util::StreamBody`.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl BodyError {
    /// Returns the response for the client: status 413, 408 or 400, with the error as text.
    #[must_use]
    pub fn response(&self) -> HttpResponse {
        let status = match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TimedOut { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Read(_) => StatusCode::BAD_REQUEST,
        };
        text_response(status, format!("{self}\n"))
    }
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// If the body is larger, does not arrive in time (see [`Server`](crate::Server)), or the connection fails.
///
/// # Cancel safety
/// The part that was already read is lost.
pub async fn read_body(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let error = match Limited::new(body, limit).collect().await {
        Ok(collected) => return Ok(collected.to_bytes()),
        Err(error) => error,
    };
    if error.is::<LengthLimitError>() {
        return Err(BodyError::TooLarge { limit });
    }
    Err(match error.downcast_ref::<BodyTimeout>() {
        Some(&BodyTimeout { limit }) => BodyError::TimedOut { limit },
        None => BodyError::Read(error),
    })
}

/// Builds a `text/plain` response.
pub fn text_response(status: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    let mut response = http::Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// The 404 response of Go's HTTP servers.
pub(crate) fn not_found() -> HttpResponse {
    text_response(StatusCode::NOT_FOUND, "404 page not found\n")
}
