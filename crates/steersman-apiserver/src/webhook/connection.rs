// SPDX-License-Identifier: Apache-2.0
//! One request on one connection.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{ANSWER_MAX, Url, answer::Response};

/// A request to send.
pub(super) struct Exchange {
    /// The address of a service; otherwise the host of the URL is resolved.
    pub(super) address: Option<SocketAddr>,
    pub(super) url: Url,
    /// Sent by POST; without a body the request is a GET.
    pub(super) body: Option<String>,
}

/// Returns TLS settings that trust these authorities.
pub(super) fn settings(authorities: &[u8]) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities).filter_map(Result::ok) {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Sends the request and reads the response.
pub(super) async fn exchange(exchange: &Exchange, tls: Arc<ClientConfig>) -> Result<Response, String> {
    let url = &exchange.url;
    let stream = match exchange.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect((url.host.as_str(), url.port)).await,
    };
    let dialed = exchange.address.map_or_else(
        || format!("{}:{}", url.host, url.port),
        |address| address.to_string(),
    );
    let stream = stream.map_err(|error| dial_error(&dialed, &url.host, &error))?;
    let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(tls);
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| tls_error(&url.host, &error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| http_error(&error))?;
    let answer = async move {
        let response = sender.send_request(request(exchange)?).await;
        let (parts, body) = response.map_err(|error| http_error(&error))?.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|_| "http: response body too large".to_owned())?;
        Ok(Response {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
        })
    };
    let (answer, connection) = (std::pin::pin!(answer), std::pin::pin!(connection));
    drive(answer, connection).await
}

/// Polls the connection until the answer is complete.
async fn drive<T>(
    answer: std::pin::Pin<&mut impl Future<Output = T>>,
    connection: std::pin::Pin<&mut impl Future>,
) -> T {
    match futures::future::select(answer, connection).await {
        futures::future::Either::Left((answer, _)) => answer,
        // The connection has ended; what it received is still to be read.
        futures::future::Either::Right((_, answer)) => answer.await,
    }
}

fn request(exchange: &Exchange) -> Result<Request<Full<Bytes>>, String> {
    let path = match exchange.url.path.as_str() {
        "" => "/",
        path => path,
    };
    let method = if exchange.body.is_some() { "POST" } else { "GET" };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, &exchange.url.authority)
        .header(header::ACCEPT, "application/json, */*")
        .header(header::USER_AGENT, "kube-apiserver-admission");
    if exchange.body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = exchange.body.clone().unwrap_or_default();
    request
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())
}

fn dial_error(address: &str, host: &str, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let why = match error.kind() {
        ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connect: connection reset by peer".to_owned(),
        ErrorKind::TimedOut => "i/o timeout".to_owned(),
        ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        _ => return format!("dial tcp: lookup {host}: no such host"),
    };
    format!("dial tcp {address}: {why}")
}

fn tls_error(host: &str, error: &std::io::Error) -> String {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let why = match cause {
        Some(rustls::Error::InvalidCertificate(invalid)) => match invalid {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "certificate signed by unknown authority".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                if host.parse::<std::net::IpAddr>().is_ok() {
                    format!("cannot validate certificate for {host} because it doesn't contain any IP SANs")
                } else {
                    format!("certificate is not valid for any names, but wanted to match {host}")
                }
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                "certificate has expired or is not yet valid".to_owned()
            }
            other => other.to_string(),
        },
        _ if error.kind() == std::io::ErrorKind::UnexpectedEof => return "EOF".to_owned(),
        Some(rustls::Error::InvalidMessage(_)) => {
            return "tls: first record does not look like a TLS handshake".to_owned();
        }
        _ => return error.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {why}")
}

fn http_error(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_end = cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::UnexpectedEof);
    if is_end || error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        "EOF".to_owned()
    } else if error.is_parse() {
        "net/http: HTTP/1.x transport connection broken: malformed HTTP response".to_owned()
    } else {
        error.to_string()
    }
}
