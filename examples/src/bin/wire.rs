// SPDX-License-Identifier: Apache-2.0
//! Watches through the fault proxy: shows the requests, and the effect of a cut connection.
//!
//! ```text
//! cargo run -p steersman-examples --bin wire             # on the embedded API server
//! cargo run -p steersman-examples --bin wire -- --real   # on kube-apiserver, which is built the first time
//! ```

use std::{error::Error, io::Write};

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams, client::Body};
use serde_json::json;
use steersman_testing::{
    EmbeddedServer, FaultProxy, RealServer,
    proxy::{Cut, Fault, Matching},
};

enum Server {
    Embedded(EmbeddedServer),
    Real(Box<RealServer>),
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let server = if std::env::args().any(|argument| argument == "--real") {
        let assets = steersman_assets::find_or_build(&mut |step| eprintln!("{step}"));
        let assets = assets.map_err(|error| error.to_string())?;
        writeln!(
            out,
            "starting kube-apiserver and etcd from {}",
            assets.dir().display()
        )?;
        Server::Real(Box::new(RealServer::builder().assets(assets).start().await?))
    } else {
        writeln!(out, "starting the embedded API server")?;
        Server::Embedded(EmbeddedServer::start(false).await?)
    };
    let (endpoint, admin) = match &server {
        Server::Embedded(server) => (server.endpoint(), server.admin()),
        Server::Real(server) => (server.endpoint(), server.admin()),
    };
    let proxy = FaultProxy::start(endpoint).await?;
    let client = proxy.client(admin)?;

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for name in ["one", "two", "three"] {
        let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        maps.create(&PostParams::default(), &map).await?;
    }

    writeln!(out, "\na watch that breaks in the middle of its third line:")?;
    let _cut = proxy.inject(Matching::watches(), Fault::cut_after_lines(2, Cut::MidLine));
    let request = http::Request::get("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0");
    let mut body = client.send(request.body(Body::empty())?).await?.into_body();
    let mut bytes = Vec::new();
    let end = loop {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => break format!("the connection broke: {error}"),
            None => break "it ended in good order".to_owned(),
        }
    };
    for line in String::from_utf8_lossy(&bytes).lines() {
        let short: String = line.chars().take(100).collect();
        writeln!(out, "  {short}… ({} bytes)", line.len())?;
    }
    writeln!(out, "  {end}")?;

    writeln!(out, "\na write whose answer is lost:")?;
    let _lost = proxy.inject(Matching::method("POST"), Fault::drop_response());
    let map = serde_json::from_value(json!({"metadata": {"name": "four"}}))?;
    let answer = maps.create(&PostParams::default(), &map).await;
    writeln!(
        out,
        "  the client saw: {}",
        answer.map_or_else(|error| error.to_string(), |_| "success".to_owned())
    )?;
    let there = maps.get_opt("four").await?.is_some();
    writeln!(out, "  the object is on the server: {there}")?;

    writeln!(out, "\nwhat was on the wire:")?;
    for exchange in proxy.exchanges() {
        let status = exchange
            .status
            .map_or_else(|| "–".to_owned(), |status| status.to_string());
        let end = exchange
            .ended
            .map_or_else(|| "open".to_owned(), |end| format!("{end:?}"));
        writeln!(
            out,
            "  connection {} {:6} {:4} {:10} {:6} bytes  {}{}{}",
            exchange.connection,
            exchange.method,
            status,
            end,
            exchange.bytes,
            exchange.path,
            if exchange.query.is_empty() { "" } else { "?" },
            exchange.query,
        )?;
    }
    Ok(())
}
