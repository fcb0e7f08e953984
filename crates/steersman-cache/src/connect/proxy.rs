// SPDX-License-Identifier: Apache-2.0
//! Proxies between this program and the API server.
//!
//! # Guarantees
//! 1. A `proxy-url` of the kubeconfig is used for its cluster, whatever the environment says. Otherwise the environment
//!    decides, also in a Pod: `HTTPS_PROXY` for a server with `https`, `HTTP_PROXY` for one with `http`, and `ALL_PROXY`
//!    if that is not set; in upper case, or in lower case.
//! 2. A proxy of the environment is not used for hosts in `NO_PROXY`, and never for a loopback host. The host of the
//!    server decides, not that of the proxy.
//! 3. No error and no `Debug` output shows the user and the password of a proxy URL.
//! 4. An error names the place that the proxy URL is from.

mod no_proxy;
#[cfg(test)]
mod tests;

use std::{env, fmt};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri, uri::Authority};
use kube::Config;
use percent_encoding::percent_decode_str;

use no_proxy::NoProxy;

/// A proxy to the server of one configuration.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) protocol: Protocol,
    /// Scheme, host and port; no credentials.
    pub(super) address: Uri,
    /// User and password, decoded.
    user: Option<(String, String)>,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP CONNECT.
    Http,
    /// HTTP CONNECT over TLS.
    Https,
    /// SOCKS 5; the proxy resolves names.
    Socks5,
}

/// Place that a proxy URL is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyOrigin {
    /// `proxy-url` of the kubeconfig, or `proxy_url` of the configuration.
    Kubeconfig,
    /// An environment variable.
    Variable(&'static str),
}
use ProxyOrigin as Origin;

/// A proxy URL cannot be used. The error does not show the URL, which can contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unusable proxy URL in {origin}: {reason}; use a URL such as `http://proxy:3128` or `socks5://proxy:1080`"
)]
#[non_exhaustive]
pub struct InvalidProxy {
    /// Place of the URL.
    pub origin: ProxyOrigin,
    reason: &'static str,
}

impl fmt::Display for ProxyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig => f.write_str("`proxy-url` of the kubeconfig"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
        }
    }
}

impl Proxy {
    /// Finds the proxy for the server of a configuration, if it has one.
    pub(super) fn of(config: &Config) -> Result<Option<Self>, InvalidProxy> {
        Self::find(config, |name| env::var(name).ok())
    }

    fn find(
        config: &Config,
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidProxy> {
        let set = |names: [&'static str; 2]| {
            let mut values = names.into_iter().map(|name| (name, variable(name)));
            values.find_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
        };
        // kube copies this variable into the configuration, without `NO_PROXY`.
        let of_kube = set(["HTTPS_PROXY", "https_proxy"]).and_then(|(_, text)| text.parse::<Uri>().ok());
        if let Some(url) = &config.proxy_url
            && Some(url) != of_kube.as_ref()
        {
            return Self::parse(&url.to_string(), Origin::Kubeconfig).map(Some);
        }
        let (server, is_https) = (
            &config.cluster_url,
            config.cluster_url.scheme_str() == Some("https"),
        );
        let own = match is_https {
            true => set(["HTTPS_PROXY", "https_proxy"]),
            // A CGI program gets the header `Proxy` of a request as HTTP_PROXY.
            false => set(["HTTP_PROXY", "http_proxy"]).filter(|_| variable("REQUEST_METHOD").is_none()),
        };
        let Some((name, text)) = own.or_else(|| set(["ALL_PROXY", "all_proxy"])) else {
            return Ok(None);
        };
        let exempt = set(["NO_PROXY", "no_proxy"]).map_or_else(String::new, |(_, text)| text);
        let port = server.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        if NoProxy::parse(&exempt).exempts(server.host().unwrap_or_default(), port) {
            return Ok(None);
        }
        Self::parse(&text, Origin::Variable(name)).map(Some)
    }

    fn parse(text: &str, origin: Origin) -> Result<Self, InvalidProxy> {
        let invalid = |reason| InvalidProxy { origin, reason };
        // As with Go and curl, `proxy:3128` is an HTTP proxy.
        let (scheme, rest) = text.trim().split_once("://").unwrap_or(("http", text.trim()));
        let (protocol, scheme, port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Protocol::Http, "http", 80),
            "https" => (Protocol::Https, "https", 443),
            "socks5" | "socks5h" => (Protocol::Socks5, "http", 1080),
            _ => return Err(invalid("unknown scheme")),
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, rest),
        };
        let authority: Authority = host.parse().map_err(|_| invalid("invalid host or port"))?;
        if authority.host().is_empty() {
            return Err(invalid("no host"));
        }
        // An invalid port is not an error of `Authority`.
        if host.len() > authority.host().len() && authority.port_u16().is_none() {
            return Err(invalid("invalid port"));
        }
        let port = authority.port_u16().unwrap_or(port);
        let address = format!("{scheme}://{}:{port}/", authority.host());
        Ok(Self {
            protocol,
            address: address.parse().map_err(|_| invalid("invalid host or port"))?,
            user: user
                .map(|user| credentials(user).ok_or(invalid("invalid user or password")))
                .transpose()?,
            origin,
        })
    }

    /// Returns the user and the password.
    pub(super) fn user(&self) -> Option<(String, String)> {
        self.user.clone()
    }

    /// Returns the credentials as a header.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let (user, password) = self.user.as_ref()?;
        let encoded = STANDARD.encode(format!("{user}:{password}"));
        let mut header = HeaderValue::try_from(format!("Basic {encoded}")).ok()?;
        header.set_sensitive(true);
        Some(header)
    }
}

/// Decodes `user:password`.
fn credentials(text: &str) -> Option<(String, String)> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let decode = |part| Some(percent_decode_str(part).decode_utf8().ok()?.into_owned());
    Some((decode(user)?, decode(password)?))
}

/// `http://proxy:3128 (HTTPS_PROXY)`; without credentials.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Socks5 => "socks5",
        };
        let host = self.address.authority().map_or("", Authority::as_str);
        write!(f, "{scheme}://{host} of {}", self.origin)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}
