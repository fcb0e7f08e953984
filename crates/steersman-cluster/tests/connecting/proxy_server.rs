// SPDX-License-Identifier: Apache-2.0
//! HTTP, HTTPS and SOCKS 5 proxies.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// `Basic` credentials of `me:hunt@er2`, and their form in a URL.
const AUTHORIZATION: &str = "Proxy-Authorization: Basic bWU6aHVudEBlcjI=\r\n";
pub(crate) const USER: &str = "me:hunt%40er2";

#[derive(Clone)]
pub(crate) enum Protocol {
    Http,
    Https(TlsAcceptor),
    Socks5,
}

/// A proxy that asks for credentials. It connects to one server, whatever host it is asked for.
pub(crate) struct ProxyServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl ProxyServer {
    pub(crate) async fn start(protocol: Protocol, server: SocketAddr) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), protocol, server).await
    }

    pub(crate) async fn start_at(address: SocketAddr, protocol: Protocol, server: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::default());
        let (mut tasks, noted) = (JoinSet::new(), Arc::clone(&asked));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (protocol, noted) = (protocol.clone(), Arc::clone(&noted));
                // A connection that fails is the client's to notice.
                connections.spawn(async move {
                    let _ = serve(stream, protocol, server, &noted).await;
                });
            }
        });
        Self {
            address,
            asked,
            _tasks: tasks,
        }
    }

    /// The hosts and ports that clients asked for, once for each connection.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// TLS settings of a proxy, and the PEM and DER of the certificate to trust.
pub(crate) fn tls() -> (TlsAcceptor, Vec<u8>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), certificate.der().to_vec())
}

async fn serve(
    stream: TcpStream,
    protocol: Protocol,
    server: SocketAddr,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    match protocol {
        Protocol::Http => connect(stream, server, asked).await,
        Protocol::Https(acceptor) => connect(acceptor.accept(stream).await?, server, asked).await,
        Protocol::Socks5 => socks(stream, server, asked).await,
    }
}

async fn connect(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    server: SocketAddr,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if !head.contains(AUTHORIZATION) {
        let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        return stream.write_all(answer).await;
    }
    let target = head.split(' ').nth(1).unwrap_or_default();
    asked.lock().unwrap().push(target.to_owned());
    let mut to_server = TcpStream::connect(server).await?;
    stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await?;
    copy_bidirectional(&mut stream, &mut to_server).await.map(drop)
}

/// RFC 1928 with the authentication of RFC 1929.
async fn socks(mut stream: TcpStream, server: SocketAddr, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let [_version, count] = read(&mut stream).await?;
    let mut methods = vec![0; count.into()];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&2) {
        return stream.write_all(&[5, 0xff]).await;
    }
    stream.write_all(&[5, 2]).await?;
    let [_version] = read(&mut stream).await?;
    let (user, password) = (text(&mut stream).await?, text(&mut stream).await?);
    if (&*user, &*password) != ("me", "hunt@er2") {
        return stream.write_all(&[1, 1]).await;
    }
    stream.write_all(&[1, 0]).await?;
    let [_version, _connect, _, kind] = read(&mut stream).await?;
    let host = match kind {
        1 => SocketAddr::from((read::<4>(&mut stream).await?, 0))
            .ip()
            .to_string(),
        _ => text(&mut stream).await?,
    };
    let port = stream.read_u16().await?;
    asked.lock().unwrap().push(format!("{host}:{port}"));
    let mut to_server = TcpStream::connect(server).await?;
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(&mut stream, &mut to_server).await.map(drop)
}

async fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn text(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
