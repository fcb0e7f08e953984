// SPDX-License-Identifier: Apache-2.0
//! Which path is answered by whom.
//!
//! A dozen paths need no router crate: a sorted map finds them.

use std::{borrow::Cow, collections::BTreeMap, error::Error, fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use tower::{Service, ServiceExt};

/// Any error, for people whose errors are not ours.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request as it comes from the socket.
pub type Request = http::Request<Incoming>;

/// A response with its body.
pub type Response = http::Response<UnsyncBoxBody<Bytes, BoxError>>;

type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Answers requests. Clones are one handler.
#[derive(Clone)]
pub struct Handler(Arc<dyn Fn(Request) -> Answering + Send + Sync>);

/// Handlers by path.
///
/// A path that ends in a slash stands for everything below it, as in Go's `ServeMux`; the longest that fits is used.
/// Nothing is redirected.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use steersman_manager::{Handler, Routes};
///
/// let hello = Handler::new(|_request| async { http::Response::new(Full::new(Bytes::from("hello\n"))) });
/// let mut routes = Routes::new();
/// routes.add("/hello", hello.clone())?;
/// assert!(routes.add("/hello", hello).is_err());
/// # Ok::<(), steersman_manager::RouteError>(())
/// ```
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<String, Handler>);

/// A path was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The path has a handler already.
    #[error("{path} has a handler already: choose another path")]
    Taken {
        /// The path.
        path: String,
    },
    /// No request could ever have this path.
    #[error("`{path}` is no path: begin it with a slash, and leave out `?` and `#`")]
    Invalid {
        /// What was given.
        path: String,
    },
}

impl Handler {
    /// A handler from an async function.
    pub fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = http::Response<Full<Bytes>>> + Send + 'static,
    {
        Self(Arc::new(move |request| {
            let answering = answer(request);
            Box::pin(async move { boxed(answering.await) })
        }))
    }

    /// A handler from a service, such as a router of some web framework.
    ///
    /// If the service fails, the client is told 500 and the log why.
    pub fn service<S, B>(service: S) -> Self
    where
        S: Service<Request, Response = http::Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Arc::new(move |request| {
            let service = service.clone();
            Box::pin(async move {
                match service.oneshot(request).await {
                    Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
                    Err(error) => {
                        let error: BoxError = error.into();
                        tracing::error!(error = causes(&*error), "a service failed");
                        boxed(text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error\n"))
                    }
                }
            })
        }))
    }

    /// A handler that decides about a request before another one sees it.
    pub(crate) fn behind<F, Fut>(self, decide: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Request, http::Response<Full<Bytes>>>> + Send + 'static,
    {
        Self(Arc::new(move |request| {
            let (decision, handler) = (decide(request), self.clone());
            Box::pin(async move {
                match decision.await {
                    Ok(request) => handler.answer(request).await,
                    Err(refusal) => boxed(refusal),
                }
            })
        }))
    }

    async fn answer(&self, request: Request) -> Response {
        (self.0)(request).await
    }
}

impl Routes {
    /// No routes yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has `handler` answer what is asked at `path`, or below it if it ends in a slash.
    ///
    /// # Errors
    /// If the path is taken, or none.
    pub fn add(&mut self, path: impl Into<String>, handler: Handler) -> Result<(), RouteError> {
        let path = path.into();
        if !path.starts_with('/') || path.contains(['?', '#']) {
            return Err(RouteError::Invalid { path });
        }
        if self.0.contains_key(&path) {
            return Err(RouteError::Taken { path });
        }
        self.0.insert(path, handler);
        Ok(())
    }

    /// Puts each handler behind something.
    pub(crate) fn map(self, each: impl Fn(Handler) -> Handler) -> Self {
        Self(
            self.0
                .into_iter()
                .map(|(path, handler)| (path, each(handler)))
                .collect(),
        )
    }

    pub(super) async fn answer(&self, request: Request) -> Response {
        match self.find(request.uri().path()) {
            Some(handler) => handler.answer(request).await,
            None => boxed(not_found()),
        }
    }

    fn find(&self, path: &str) -> Option<&Handler> {
        // A handler that walks up such a path would answer for another than the one that was asked about.
        if decoded(path)
            .split('/')
            .any(|segment| matches!(segment, "." | ".."))
        {
            return None;
        }
        let above = path.rmatch_indices('/').map(|(slash, _)| &path[..=slash]);
        [path].into_iter().chain(above).find_map(|path| self.0.get(path))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A path without its percent signs.
pub(crate) fn decoded(path: &str) -> Cow<'_, str> {
    percent_decode_str(path).decode_utf8_lossy()
}

/// A plain answer.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> http::Response<Full<Bytes>> {
    let mut response = http::Response::new(Full::new(body.into()));
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

/// What Go's servers say where nothing is.
pub(crate) fn not_found() -> http::Response<Full<Bytes>> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// An error with its sources, since no error of ours repeats its own; those of others may.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

fn boxed(response: http::Response<Full<Bytes>>) -> Response {
    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(paths: &[&str]) -> Routes {
        let mut routes = Routes::new();
        for path in paths {
            routes
                .add(*path, Handler::new(|_| async { not_found() }))
                .unwrap();
        }
        routes
    }

    #[test]
    fn the_longest_path_that_fits_is_used() {
        let routes = routes(&["/a", "/a/", "/a/b/", "/a/b/c"]);
        let found = |path: &str| {
            let handler = routes.find(path)?;
            let is_it = |(_, other): &(&String, &Handler)| Arc::ptr_eq(&other.0, &handler.0);
            routes.0.iter().find(is_it).map(|(path, _)| path.as_str())
        };
        assert_eq!(found("/a"), Some("/a"));
        assert_eq!(found("/a/"), Some("/a/"));
        assert_eq!(found("/a/x/y"), Some("/a/"));
        assert_eq!(found("/a/b"), Some("/a/"));
        assert_eq!(found("/a/b/x"), Some("/a/b/"));
        assert_eq!(found("/a/b/c"), Some("/a/b/c"));
        assert_eq!(found("/ab"), None);
        assert_eq!(found("*"), None);
        for path in ["/a/x/../b/c", "/a/.", "/a/%2e%2e/b", "/a/x%2F..%2Fb"] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn a_path_that_no_request_can_have_is_refused() {
        let mut routes = Routes::new();
        for path in ["", "metrics", "/a?b", "/a#b"] {
            let refused = routes.add(path, Handler::new(|_| async { not_found() }));
            assert_eq!(
                refused,
                Err(RouteError::Invalid {
                    path: path.to_owned()
                })
            );
        }
    }
}
