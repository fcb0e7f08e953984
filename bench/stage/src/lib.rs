// SPDX-License-Identifier: Apache-2.0
//! The API servers that a benchmark runs on: the embedded one and the real one, each as a separate process.
//!
//! The embedded one is the program itself, called with [`SERVE`]: its `main` hands that over to [`serve`].

use std::{net::SocketAddr, process::Stdio};

use serde_json::{Value, json};
use steersman_apiserver::ApiServer;
use steersman_testing::{Endpoint, Identity, RealServer};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

/// The word by which a program is asked to be the embedded server.
pub const SERVE: &str = "--serve";

/// A server that runs until this drops.
#[derive(Debug)]
pub struct Server {
    who: &'static str,
    endpoint: Endpoint,
    admin: Identity,
    processes: Vec<u32>,
    _keeps: Keeps,
}

/// Resources of the server; dropping them ends the processes.
#[expect(dead_code, reason = "held for its drop")]
#[derive(Debug)]
enum Keeps {
    Child(Box<Child>),
    Real(Box<RealServer>),
}

impl Server {
    /// The embedded server, as another process of this program.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn embedded() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let read = BufReader::new(out).read_line(&mut line).await;
            read.map_err(|error| error.to_string())?;
        }
        let told: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            who: "embedded",
            endpoint: Endpoint::new(text("url"), text("ca")),
            admin: Identity::new("admin", text("token")),
            processes: child.id().into_iter().collect(),
            _keeps: Keeps::Child(Box::new(child)),
        })
    }

    /// `kube-apiserver` with `etcd`.
    ///
    /// # Errors
    /// When there is none, or it does not start.
    pub async fn real() -> Result<Self, String> {
        let server = RealServer::builder().start().await;
        let server = server.map_err(|error| error.to_string())?;
        Ok(Self {
            who: "kube-apiserver",
            endpoint: server.endpoint().clone(),
            admin: server.admin().clone(),
            processes: server.process_ids(),
            _keeps: Keeps::Real(Box::new(server)),
        })
    }

    /// Name in tables.
    #[must_use]
    pub fn who(&self) -> &'static str {
        self.who
    }

    /// Address.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Administrator.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// The numbers of its processes.
    #[must_use]
    pub fn processes(&self) -> &[u32] {
        &self.processes
    }
}

/// Is the embedded server, until stdin ends.
///
/// # Errors
/// When no port can be had.
pub async fn serve() -> Result<(), String> {
    let token = "bench";
    let server = ApiServer::builder()
        .rbac(true)
        .token(token, steersman_apiserver::Identity::admin())
        .build();
    let listener = server
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .map_err(|error| error.to_string())?;
    let told = json!({"url": listener.url(), "ca": listener.ca_pem(), "token": token});
    bench_protocol::participant::say(&told.to_string());
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    Ok(())
}
