// SPDX-License-Identifier: Apache-2.0
//! Runs a real API server until its standard input ends (Ctrl-D), and prints what is needed to use it.
//!
//! ```text
//! cargo run -p steersman-testing --example serve_real
//! ```
//!
//! With `--shared` it prints one line only: the path of a file that other processes read to share the server, as
//! `cargo xtask test` and its test binaries do.

use std::{error::Error, io::Write};

use steersman_testing::{RealServer, SharedServer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let shared = std::env::args().any(|argument| argument == "--shared");
    let server = match RealServer::builder().start().await {
        Ok(server) => server,
        Err(error) => return Err(steersman_assets::describe(&error).into()),
    };
    let mut out = std::io::stdout();
    if shared {
        let path = server.dir().join("shared.json");
        std::fs::write(&path, serde_json::to_vec(&SharedServer::of(&server))?)?;
        writeln!(out, "{}", path.display())?;
    } else {
        let path = server.dir().join("admin.kubeconfig");
        std::fs::write(&path, server.endpoint().kubeconfig(server.admin()))?;
        writeln!(out, "a real API server runs at {}", server.endpoint().url())?;
        writeln!(out, "  export KUBECONFIG={}", path.display())?;
        writeln!(out, "it ends, and its files with it, on Ctrl-D or Ctrl-C")?;
    }
    out.flush()?;
    // Blocking is fine: nothing else runs here.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
