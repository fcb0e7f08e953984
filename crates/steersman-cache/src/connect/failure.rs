// SPDX-License-Identifier: Apache-2.0
//! Errors of connections that name the setting at fault: the proxy, or the certificate authority.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use steersman_core::error_chain;
use tower::{BoxError, Service};

use super::{AuthorityPlace, proxy::Proxy};

/// The way to the server, as errors describe it.
#[derive(Clone, Debug)]
pub(super) struct Route(Arc<Settings>);

#[derive(Debug)]
struct Settings {
    proxy: Option<Proxy>,
    authority: AuthorityPlace,
}

/// A connection failed. It has no source: its text contains the causes, and stays complete where only the innermost
/// error is shown.
#[derive(Debug)]
struct Failure(String);

/// A connector whose errors name the route, with a timeout for the whole connection.
#[derive(Clone, Debug)]
pub(super) struct Failing<C> {
    connector: C,
    route: Route,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Proxy,
    Server { timeout: Option<Duration> },
}

impl Route {
    pub(super) fn direct(authority: AuthorityPlace) -> Self {
        Self(Arc::new(Settings {
            proxy: None,
            authority,
        }))
    }

    pub(super) fn through(proxy: Proxy, authority: AuthorityPlace) -> Self {
        Self(Arc::new(Settings {
            proxy: Some(proxy),
            authority,
        }))
    }

    /// Describes an error of the proxy.
    fn proxy_failed(&self, error: &(dyn Error + 'static)) -> BoxError {
        let Some(proxy) = &self.0.proxy else {
            return Failure(error_chain(error)).into();
        };
        let reason = self.untrusted(error).unwrap_or_else(|| error_chain(error));
        Failure(format!("cannot connect through the proxy {proxy}: {reason}")).into()
    }

    /// Describes an error of the server, if a setting is at fault.
    fn server_failed(&self, error: BoxError) -> BoxError {
        if error.is::<Failure>() {
            return error;
        }
        match self.untrusted(&*error) {
            Some(text) => Failure(text).into(),
            None => error,
        }
    }

    fn timed_out(&self, limit: Duration) -> BoxError {
        match &self.0.proxy {
            Some(proxy) => Failure(format!(
                "no connection through the proxy {proxy} within {limit:?}"
            ))
            .into(),
            None => Failure(format!("no connection within {limit:?}")).into(),
        }
    }

    fn untrusted(&self, error: &(dyn Error + 'static)) -> Option<String> {
        let problem = certificate_error(error)?;
        let place = &self.0.authority;
        Some(format!(
            "the server certificate cannot be verified with {place}: {problem}"
        ))
    }
}

/// Finds the error of an invalid server certificate among the causes. An `io::Error` hides the error that it wraps from
/// `source`.
fn certificate_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error @ rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return Some(error);
        }
        let wrapped = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &'a (dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

impl<C> Failing<C> {
    /// Wraps the connector of a proxy.
    pub(super) fn of_proxy(connector: C, route: &Route) -> Self {
        Self {
            connector,
            route: route.clone(),
            stage: Stage::Proxy,
        }
    }

    /// Wraps the connector of the server.
    pub(super) fn of_server(connector: C, route: Route, timeout: Option<Duration>) -> Self {
        Self {
            connector,
            route,
            stage: Stage::Server { timeout },
        }
    }
}

impl<C> Service<Uri> for Failing<C>
where
    C: Service<Uri>,
    C::Response: 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (route, stage) = (self.route.clone(), self.stage);
        match stage {
            Stage::Proxy => {
                let connecting = self.connector.call(with_port(uri));
                Box::pin(async move {
                    connecting
                        .await
                        .map_err(|error| route.proxy_failed(&*error.into()))
                })
            }
            Stage::Server { timeout } => {
                let connecting = self.connector.call(uri);
                Box::pin(async move {
                    let connected = match timeout {
                        Some(limit) => tokio::time::timeout(limit, connecting)
                            .await
                            .map_err(|_| route.timed_out(limit))?,
                        None => connecting.await,
                    };
                    connected.map_err(|error| route.server_failed(error.into()))
                })
            }
        }
    }
}

/// Adds the port to the URI of a server without TLS: a proxy would be asked for port 443.
fn with_port(uri: Uri) -> Uri {
    if uri.port().is_some() || uri.scheme_str() == Some("https") {
        return uri;
    }
    let with_port = format!("http://{}:80/", uri.host().unwrap_or_default());
    with_port.parse().unwrap_or(uri)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Failure {}
