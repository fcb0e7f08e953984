// SPDX-License-Identifier: Apache-2.0
//! Maps request paths to handlers.
//!
//! An operator has a dozen paths, so a sorted map replaces a router crate. A router with patterns and extractors can be
//! mounted below a path with [`HttpHandler::service`].

use std::{borrow::Cow, collections::BTreeMap, fmt};

use percent_encoding::percent_decode_str;

use crate::{
    HttpHandler,
    handler::{HttpRequest, HttpResponse, not_found},
};

/// HTTP handlers by path.
///
/// A path that ends in `/` matches all paths below it, as in Go's `ServeMux`; the longest match wins. A request whose path
/// contains `.` or `..` segments gets status 404. There are no redirects.
///
/// ```
/// use http::StatusCode;
/// use steersman_endpoints::{HttpHandler, Routes, text_response};
///
/// let hello = HttpHandler::new(|_request| async { text_response(StatusCode::OK, "hello\n") });
/// let mut routes = Routes::new();
/// routes.add("/hello", hello.clone())?;
/// assert!(routes.add("/hello", hello).is_err());
/// # Ok::<(), steersman_endpoints::RouteError>(())
/// ```
#[derive(Clone, Default)]
pub struct Routes(BTreeMap<String, HttpHandler>);

/// A route cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The path already has a handler.
    #[error("cannot add route `{path}`: the path already has a handler; choose another path")]
    Duplicate {
        /// The path.
        path: String,
    },
    /// The path cannot match any request.
    #[error("cannot add route `{path}`: a path must start with `/` and must not contain `?` or `#`")]
    Invalid {
        /// The path.
        path: String,
    },
}

impl Routes {
    /// Creates an empty set of routes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a handler for `path`, or for all paths below it if it ends in `/`.
    ///
    /// # Errors
    /// If the path already has a handler or is invalid.
    pub fn add(&mut self, path: impl Into<String>, handler: HttpHandler) -> Result<(), RouteError> {
        let path = path.into();
        if !path.starts_with('/') || path.contains(['?', '#']) {
            return Err(RouteError::Invalid { path });
        }
        if self.0.contains_key(&path) {
            return Err(RouteError::Duplicate { path });
        }
        self.0.insert(path, handler);
        Ok(())
    }

    /// Wraps each handler.
    pub(crate) fn map(self, wrap: impl Fn(HttpHandler) -> HttpHandler) -> Self {
        let routes = self.0.into_iter();
        Self(routes.map(|(path, handler)| (path, wrap(handler))).collect())
    }

    pub(crate) async fn respond(&self, request: HttpRequest) -> HttpResponse {
        match self.find(request.uri().path()) {
            Some(handler) => handler.respond(request).await,
            None => not_found(),
        }
    }

    fn find(&self, path: &str) -> Option<&HttpHandler> {
        // A handler that resolves `..` would serve a different path than the one that was authorized.
        if percent_decoded(path)
            .split('/')
            .any(|segment| matches!(segment, "." | ".."))
        {
            return None;
        }
        let above = path.rmatch_indices('/').map(|(slash, _)| &path[..=slash]);
        [path].into_iter().chain(above).find_map(|path| self.0.get(path))
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Decodes the percent-encoding of a path.
pub(crate) fn percent_decoded(path: &str) -> Cow<'_, str> {
    percent_decode_str(path).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn handler() -> HttpHandler {
        HttpHandler::new(|_| async { not_found() })
    }

    fn routes(paths: &[&str]) -> Routes {
        let mut routes = Routes::new();
        for path in paths {
            routes.add(*path, handler()).unwrap();
        }
        routes
    }

    #[test]
    fn the_longest_matching_path_wins() {
        let routes = routes(&["/a", "/a/", "/a/b/", "/a/b/c"]);
        let found = |path: &str| {
            let handler = routes.find(path)?;
            let is_it = |(_, other): &(&String, &HttpHandler)| Arc::ptr_eq(&other.0, &handler.0);
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
    fn rejects_a_path_that_no_request_can_have() {
        let mut routes = Routes::new();
        for path in ["", "metrics", "/a?b", "/a#b"] {
            let path = path.to_owned();
            assert_eq!(
                routes.add(path.clone(), handler()),
                Err(RouteError::Invalid { path })
            );
        }
    }
}
