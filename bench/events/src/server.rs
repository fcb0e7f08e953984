// SPDX-License-Identifier: Apache-2.0
//! A server of HTTP/1.1 on the loopback address that replays events: a thread a connection, bytes that are ready.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use serde_json::json;

use crate::{
    answers::{answer, kind_at},
    stream::{Stream, bookmark},
};

/// Streams by kind.
pub(crate) type Kinds = BTreeMap<String, Arc<Stream>>;

/// A running server; it ends with the process.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
}

struct Request {
    path: String,
    query: String,
    accept: String,
}

impl Server {
    /// Serves these kinds of `bench.example/v1`, such as `Widget` as `widgets`.
    ///
    /// # Errors
    /// When there is no port.
    pub fn start(kinds: impl IntoIterator<Item = (String, Arc<Stream>)>) -> io::Result<Self> {
        let kinds: Arc<Kinds> = Arc::new(kinds.into_iter().collect());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let kinds = Arc::clone(&kinds);
                // A connection that breaks is the client's end.
                thread::spawn(move || {
                    let _ = serve(&connection, &kinds);
                });
            }
        });
        Ok(Self { address })
    }

    /// Returns a kubeconfig, as JSON.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "replay",
            "clusters": [{"name": "replay", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "replay", "user": {}}],
            "contexts": [{"name": "replay", "context": {"cluster": "replay", "user": "replay"}}],
        })
        .to_string()
    }
}

fn serve(connection: &TcpStream, kinds: &Kinds) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut reader, mut out) = (BufReader::new(connection), connection);
    while let Some(request) = read(&mut reader)? {
        if let Some((kind, stream)) = kind_at(&request.path, kinds).filter(|_| asks(&request, "watch")) {
            return watch(connection, &request, kind, stream);
        }
        let (status, kind, body) = answer(&request.path, &request.accept, kinds);
        let reason = if status == 200 { "OK" } else { "Not Found" };
        let head = format!(
            "HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        out.write_all(format!("{head}{body}").as_bytes())?;
    }
    Ok(())
}

/// Sends all events to a watch that begins at the list; one that resumes has seen them.
fn watch(connection: &TcpStream, request: &Request, kind: &str, stream: &Stream) -> io::Result<()> {
    let mut out = connection;
    out.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let from = value(request, "resourceVersion").unwrap_or_default();
    if asks(request, "sendInitialEvents") {
        out.write_all(&bookmark(kind))?;
    }
    if matches!(from, "" | "0" | "1") {
        stream.send(&mut out)?;
    }
    // Stays open until the client disconnects.
    io::copy(&mut &*connection, &mut io::sink())?;
    Ok(())
}

fn asks(request: &Request, name: &str) -> bool {
    matches!(value(request, name), Some("true" | "1"))
}

fn value<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let mut pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Returns the next request, or `None` when the client has disconnected. No request here has a body that matters.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split_whitespace().nth(1).unwrap_or("/").to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (mut accept, mut length) = (String::new(), 0);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "accept" => value.trim().clone_into(&mut accept),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some(Request {
        path: path.to_owned(),
        query: query.to_owned(),
        accept,
    }))
}
