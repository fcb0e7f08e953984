// SPDX-License-Identifier: Apache-2.0
//! Rules of `NO_PROXY`, as Go's `golang.org/x/net/http/httpproxy` reads them.
//!
//! `hyper_util`'s matcher is not used: it knows no ports, does not exempt loopback addresses, and matches the domain
//! itself for an entry with a leading dot.

use std::net::IpAddr;

use ipnet::IpNet;

/// Hosts that are reached without a proxy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoProxy(Vec<Rule>);

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    /// `*`
    All,
    /// `10.0.0.0/8`
    Network(IpNet),
    /// `10.0.0.1`, `10.0.0.1:6443`
    Address { address: IpAddr, port: Option<u16> },
    /// `example.com`, `.example.com`, `*.example.com`, each also with a port.
    Domain {
        /// With a leading dot.
        suffix: String,
        /// False for an entry with a leading dot, which means only subdomains.
        is_itself: bool,
        port: Option<u16>,
    },
}

impl NoProxy {
    /// Parses the value of the variable. Entries that mean nothing are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let entries = text.split(',').map(|entry| entry.trim().to_ascii_lowercase());
        Self(entries.filter_map(|entry| Rule::parse(&entry)).collect())
    }

    /// Reports whether a host is reached without a proxy. Loopback hosts always are.
    pub(super) fn exempts(&self, host: &str, port: u16) -> bool {
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok();
        host == "localhost"
            || address.is_some_and(|address| address.is_loopback())
            || self.0.iter().any(|rule| rule.matches(&host, address, port))
    }
}

impl Rule {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::All);
        }
        if let Ok(network) = entry.parse() {
            return Some(Self::Network(network));
        }
        let (host, port) = split_port(entry)?;
        if let Ok(address) = host.parse() {
            return Some(Self::Address { address, port });
        }
        let host = host
            .strip_prefix('*')
            .filter(|rest| rest.starts_with('.'))
            .unwrap_or(host);
        let is_itself = !host.starts_with('.');
        let suffix = if is_itself {
            format!(".{host}")
        } else {
            host.to_owned()
        };
        (suffix.len() > 1).then_some(Self::Domain {
            suffix,
            is_itself,
            port,
        })
    }

    fn matches(&self, host: &str, address: Option<IpAddr>, its_port: u16) -> bool {
        let has_port = |port: Option<u16>| port.is_none_or(|port| port == its_port);
        match self {
            Self::All => true,
            Self::Network(network) => address.is_some_and(|address| network.contains(&address)),
            Self::Address { address: own, port } => address == Some(*own) && has_port(*port),
            Self::Domain {
                suffix,
                is_itself,
                port,
            } => (host.ends_with(suffix) || *is_itself && host == &suffix[1..]) && has_port(*port),
        }
    }
}

/// Splits `host:port` and `[address]:port`. `None` if the port is not a number.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match entry.rsplit_once(':') {
        // More than one colon outside of brackets is an IPv6 address.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (entry, None),
    };
    Some((host.trim_start_matches('[').trim_end_matches(']'), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    // C1
    #[test]
    fn matches_hosts_as_go_does() {
        for (rules, host, port, expected) in [
            ("example.com", "example.com", 443, true),
            ("example.com", "api.example.com", 443, true),
            ("example.com", "notexample.com", 443, false),
            ("EXAMPLE.com", "api.Example.COM", 443, true),
            (".example.com", "example.com", 443, false),
            (".example.com", "api.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("*.example.com", "a.b.example.com", 443, true),
            ("example.com:6443", "example.com", 6443, true),
            ("example.com:6443", "example.com", 443, false),
            ("10.0.0.0/8", "10.96.0.1", 443, true),
            ("10.0.0.7/8", "10.96.0.1", 443, true),
            ("10.0.0.0/8", "11.0.0.1", 443, false),
            ("fd00::/8", "[fd00::1]", 443, true),
            ("10.96.0.1", "10.96.0.1", 443, true),
            ("10.96.0.1:443", "10.96.0.1", 6443, false),
            ("fd00::1", "[fd00::1]", 443, true),
            ("[fd00::1]:443", "[fd00::1]", 443, true),
            ("[fd00::1]:443", "[fd00::1]", 6443, false),
            ("*", "anything", 1, true),
            ("a, *", "10.0.0.1", 1, true),
            (" a.com , b.com ", "b.com", 443, true),
            ("a.com b.com", "b.com", 443, false),
            ("", "example.com", 443, false),
            (",, ,", "example.com", 443, false),
            (".", "example.com", 443, false),
            (":443", "example.com", 443, false),
            ("example.com:https", "example.com", 443, false),
            ("10.96.0.1", "kubernetes.default.svc", 443, false),
            (".svc", "kubernetes.default.svc", 443, true),
        ] {
            let rules = NoProxy::parse(rules);
            assert_eq!(rules.exempts(host, port), expected, "{rules:?} {host}:{port}");
        }
    }

    // C1
    #[test]
    fn exempts_loopback_hosts() {
        let none = NoProxy::parse("");
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(none.exempts(host, 6443), "{host}");
        }
        for host in ["localhost.example.com", "128.0.0.1", "[::2]"] {
            assert!(!none.exempts(host, 6443), "{host}");
        }
    }
}
