// SPDX-License-Identifier: Apache-2.0
//! Serves on a socket until it is stopped, and prints a kubeconfig.
//!
//! Usage: `serve [PORT] [--rbac] [--workloads]`; with the last, Deployments and the like pretend to run on three nodes.
//!
//! The tokens are `admin-token`, `alice-token` and `bob-token`.

use std::net::{Ipv4Addr, SocketAddr};

use steersman_apiserver::{ApiServer, Identity, Workloads};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_told = |word: &str| std::env::args().any(|argument| argument == word);
    let port = std::env::args().nth(1).filter(|word| !word.starts_with('-'));
    let port = port.map_or(Ok(0), |port| port.parse())?;
    let mut builder = ApiServer::builder();
    if is_told("--workloads") {
        builder = builder.workloads(Workloads::default().nodes(3));
    }
    let server = builder
        .rbac(is_told("--rbac"))
        .token("admin-token", Identity::admin().uid("admin"))
        .token("alice-token", Identity::user("alice").uid("alice"))
        .token("bob-token", Identity::user("bob").uid("bob"))
        .build();
    let listener = server
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .await?;
    #[expect(clippy::print_stdout, reason = "the kubeconfig is this program's output")]
    {
        println!("{}", listener.kubeconfig("admin-token"));
    }
    std::future::pending::<()>().await;
    Ok(())
}
