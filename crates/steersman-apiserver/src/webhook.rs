// SPDX-License-Identifier: Apache-2.0
//! The HTTPS client for webhooks, with the error texts of the real server's client.
//!
//! Each call opens a connection and closes it. A call runs inside the request that needs it: it has no task.
//!
//! # Limits
//! A response has at most [`ANSWER_MAX`] bytes, and a call follows at most [`REDIRECTS`] redirects.

mod answer;
mod connection;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::{Either, select};
use serde_json::Value;

use crate::server::Inner;

/// Maximum size of a response. The real server has no limit; this one protects the process.
pub(crate) const ANSWER_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of redirects, as in Go.
const REDIRECTS: usize = 10;

/// The address of a webhook, from a `clientConfig`.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    target: Destination,
    /// The path of the URL, with its slash; empty if there is none.
    path: String,
    /// The PEM of the authorities; empty for none.
    authorities: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Destination {
    Url {
        host: String,
        port: u16,
    },
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

/// The URL of a call, split.
#[derive(Clone, Debug)]
struct Url {
    /// With the port if the URL has one.
    authority: String,
    host: String,
    port: u16,
    /// With the query.
    path: String,
}

impl Url {
    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("https://")?;
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        let (host, port) = host_and_port(authority)?;
        Some(Self {
            authority: authority.to_owned(),
            host,
            port,
            path: path.to_owned(),
        })
    }

    fn text(&self) -> String {
        format!("https://{}{}", self.authority, self.path)
    }
}

fn host_and_port(authority: &str) -> Option<(String, u16)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = port.strip_prefix(':').map_or(Ok(443), str::parse).ok()?;
        return Some((host.to_owned(), port));
    }
    match authority.split_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((authority.to_owned(), 443)),
    }
}

/// Decodes base64; empty if it is none.
fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    let decoded = base64::engine::general_purpose::STANDARD.decode(text);
    decoded.unwrap_or_default()
}

impl Client {
    /// Reads a `clientConfig`, which validation has accepted.
    pub(crate) fn of(config: &Value) -> Option<Self> {
        let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
        let authorities = text("/caBundle").map(decoded).unwrap_or_default();
        if let Some(url) = text("/url") {
            let url = Url::parse(url)?;
            return Some(Self {
                path: url.path.clone(),
                target: Destination::Url {
                    host: url.authority,
                    port: url.port,
                },
                authorities,
            });
        }
        let port = config.pointer("/service/port").and_then(Value::as_u64);
        Some(Self {
            target: Destination::Service {
                namespace: text("/service/namespace")?.to_owned(),
                name: text("/service/name")?.to_owned(),
                port: u16::try_from(port.unwrap_or(443)).ok()?,
            },
            path: text("/service/path").unwrap_or_default().to_owned(),
            authorities,
        })
    }

    /// Sends `body` and returns the body of the response.
    ///
    /// # Errors
    /// Returns the text of the real server's client.
    pub(crate) async fn post(
        &self,
        server: &Arc<Inner>,
        body: &Value,
        timeout: Option<Duration>,
    ) -> Result<Value, String> {
        let query = timeout.map_or_else(String::new, |timeout| {
            let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
            format!("?timeout={seconds}s")
        });
        let url = self.url(&query);
        let failed = |error: String| format!("Post {:?}: {error}", url.text());
        let call = std::pin::pin!(self.send(server, url.clone(), body.to_string()));
        let deadline = server.clock.sleep(timeout.unwrap_or(CONVERSION_TIMEOUT));
        match select(call, deadline).await {
            Either::Left((result, _)) => {
                let response = result.map_err(failed)?;
                answer::decode(&response)
            }
            Either::Right(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }

    fn url(&self, query: &str) -> Url {
        let path = match self.path.as_str() {
            "" if query.is_empty() => String::new(),
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        let path = format!("{path}{query}");
        match &self.target {
            Destination::Url { host, port } => {
                let name = host_and_port(host).map_or_else(|| host.clone(), |(name, _)| name);
                Url {
                    authority: host.clone(),
                    host: name,
                    port: *port,
                    path,
                }
            }
            Destination::Service {
                namespace,
                name,
                port,
            } => {
                let host = format!("{name}.{namespace}.svc");
                Url {
                    authority: format!("{host}:{port}"),
                    host,
                    port: *port,
                    path,
                }
            }
        }
    }

    /// Sends a request, and follows redirects as Go's client does.
    async fn send(&self, server: &Arc<Inner>, url: Url, body: String) -> Result<answer::Response, String> {
        let tls = connection::settings(&self.authorities)?;
        let mut request = connection::Exchange {
            address: self.address(server)?,
            url,
            body: Some(body),
        };
        for _ in 0..=REDIRECTS {
            let response = connection::exchange(&request, Arc::clone(&tls)).await?;
            let Some(location) = response.redirect() else {
                return Ok(response);
            };
            let keeps_body = matches!(response.code, 307 | 308);
            let next = if location.starts_with('/') {
                format!("https://{}{location}", request.url.authority)
            } else {
                location.to_owned()
            };
            let url = Url::parse(&next).ok_or_else(|| format!("unsupported protocol scheme {next:?}"))?;
            request = connection::Exchange {
                address: if url.authority == request.url.authority {
                    request.address
                } else {
                    None
                },
                url,
                body: request.body.take().filter(|_| keeps_body),
            };
        }
        Err(format!("stopped after {REDIRECTS} redirects"))
    }

    /// Returns the address of a service; `None` if the URL names the host.
    fn address(&self, server: &Arc<Inner>) -> Result<Option<SocketAddr>, String> {
        let Destination::Service {
            namespace,
            name,
            port,
        } = &self.target
        else {
            return Ok(None);
        };
        if let Some(address) = server.services.get(&(namespace.clone(), name.clone(), *port)) {
            return Ok(Some(*address));
        }
        let state = server.lock();
        let services = state.registry.find("", "services");
        let exists = services.is_some_and(|services| {
            let key = services.key(namespace, name);
            state.store.get(services.storage, &key).is_some()
        });
        Err(if exists {
            format!("no endpoints available for service {name:?}")
        } else {
            format!("service {name:?} not found")
        })
    }
}

/// Timeout of a conversion. On the real server only the request that needs the conversion has a time limit, and a watch
/// has none.
const CONVERSION_TIMEOUT: Duration = Duration::from_secs(60);
