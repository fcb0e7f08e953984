// SPDX-License-Identifier: Apache-2.0
//! Objects straight into etcd, as an API server would have left them: thousands a second, status and managedFields
//! included, which no write through the API server gives.
//!
//! This speaks just enough gRPC to put and delete a key.

use std::{error::Error, path::Path, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, sync::Semaphore, task::JoinSet};

type Failure = Box<dyn Error + Send + Sync>;

/// Requests under way at once.
const AT_ONCE: usize = 64;

/// A connection to the etcd of a server.
#[derive(Debug)]
pub(crate) struct Etcd {
    send: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Etcd {
    pub(crate) async fn connect(dir: &Path) -> Result<Self, Failure> {
        let stream = UnixStream::connect(dir.join("etcd.sock:0")).await?;
        let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // The result is visible in the requests.
            let _ = connection.await;
        });
        Ok(Self {
            send,
            _connection: tasks,
        })
    }

    /// Puts one Pod.
    pub(crate) async fn put_pod(&self, namespace: &str, name: &str, json: &str) -> Result<(), Failure> {
        call(self.send.clone(), "Put", message(namespace, name, Some(json))).await
    }

    /// Deletes one Pod.
    pub(crate) async fn delete_pod(&self, namespace: &str, name: &str) -> Result<(), Failure> {
        call(self.send.clone(), "DeleteRange", message(namespace, name, None)).await
    }

    /// Puts many Pods, and says now and then how far it is.
    pub(crate) async fn put_pods(
        &self,
        count: usize,
        pod: impl Fn(usize) -> (String, String, String),
        progress: impl Fn(usize),
    ) -> Result<(), Failure> {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut puts = JoinSet::new();
        for index in 0..count {
            let permit = Arc::clone(&permits).acquire_owned().await?;
            while let Some(done) = puts.try_join_next() {
                done??;
            }
            let (namespace, name, json) = pod(index);
            let (send, message) = (self.send.clone(), message(&namespace, &name, Some(&json)));
            puts.spawn(async move {
                let _permit = permit;
                call(send, "Put", message).await
            });
            if index % 5_000 == 4_999 {
                progress(index + 1);
            }
        }
        while let Some(done) = puts.join_next().await {
            done??;
        }
        Ok(())
    }
}

async fn call(mut send: SendRequest<Full<Bytes>>, method: &str, message: Bytes) -> Result<(), Failure> {
    let request = Request::post(format!("http://etcd/etcdserverpb.KV/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(message))?;
    send.ready().await?;
    let response = send.send_request(request).await?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await?;
    let status = body
        .trailers()
        .and_then(|trailers| trailers.get("grpc-status"))
        .or_else(|| parts.headers.get("grpc-status"));
    if parts.status == StatusCode::OK && status.is_some_and(|status| status == "0") {
        return Ok(());
    }
    Err(format!("etcd refused a {method}: {} {status:?}", parts.status).into())
}

/// A `PutRequest`, or without a value a `DeleteRangeRequest`, in a frame of gRPC.
fn message(namespace: &str, name: &str, json: Option<&str>) -> Bytes {
    let key = format!("/registry/pods/{namespace}/{name}");
    let mut put = BytesMut::with_capacity(json.unwrap_or_default().len() + key.len() + 32);
    put.put_slice(&[0; 5]);
    let fields = [(0x0A, Some(key.as_str())), (0x12, json)];
    for (tag, text) in fields.into_iter().filter_map(|(tag, text)| Some((tag, text?))) {
        put.put_u8(tag);
        let mut length = text.len();
        while length >= 0x80 {
            put.put_u8((length & 0x7F) as u8 | 0x80);
            length >>= 7;
        }
        put.put_u8(length as u8);
        put.put_slice(text.as_bytes());
    }
    let length = u32::try_from(put.len() - 5).expect("a Pod is small");
    put[1..5].copy_from_slice(&length.to_be_bytes());
    put.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_length_prefixes() {
        let deletion = message("a", "b", None);
        assert_eq!(&deletion[..7], [0, 0, 0, 0, 20, 0x0A, 18]);
        assert_eq!(&deletion[7..], b"/registry/pods/a/b");
        let put = message("a", "b", Some(&"x".repeat(300)));
        assert_eq!(&put[25..28], [0x12, 0xAC, 0x02]);
        assert_eq!(put.len(), 28 + 300);
    }
}
