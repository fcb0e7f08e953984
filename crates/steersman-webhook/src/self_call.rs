// SPDX-License-Identifier: Apache-2.0
//! A call of this replica to itself, as an API server would call it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// A call of this replica to itself failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelfCallError {
    #[error("the published bundle has no valid certificate")]
    Bundle,
    #[error("the name of the Service is not a DNS name")]
    Name(#[from] InvalidDnsNameError),
    #[error("cannot configure TLS")]
    Setup(#[from] rustls::Error),
    #[error("cannot connect to {address}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("the certificate is not valid for `{name}` by the published bundle, or the connection failed")]
    Call { name: String, source: io::Error },
    #[error("the answer is not HTTP")]
    Answer,
}

/// Connects to the server with the name of its Service and with this bundle, and sends a request.
///
/// The request is written by hand: one line needs no HTTP client.
pub(crate) async fn call(address: SocketAddr, name: &str, bundle: &[u8]) -> Result<(), SelfCallError> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(bundle).map_while(Result::ok);
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err(SelfCallError::Bundle);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let address = reachable(address);
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|source| SelfCallError::Connect { address, source })?;
    let failed = |source| SelfCallError::Call {
        name: name.to_owned(),
        source,
    };
    let server_name = ServerName::try_from(name.to_owned())?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(server_name, stream).await.map_err(failed)?;
    let request = b"HEAD / HTTP/1.1\r\nHost: self-call\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.map_err(failed)?;
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).await.map_err(failed)?;
    if &answer == b"HTTP/1.1 " {
        Ok(())
    } else {
        Err(SelfCallError::Answer)
    }
}

/// Returns the loopback address of a server that listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    (ip, address.port()).into()
}
