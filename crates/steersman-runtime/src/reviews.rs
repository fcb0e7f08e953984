// SPDX-License-Identifier: Apache-2.0
//! Connects the authorization of the metrics server with a cluster.

use futures::future::BoxFuture;
use kube::Client;
use serde_json::Value;

/// Returns the argument of [`MetricsServer::authorize`](steersman_endpoints::MetricsServer::authorize) that sends reviews to
/// the API server of a client.
///
/// ```no_run
/// use std::net::Ipv4Addr;
/// use steersman_endpoints::Tls;
/// use steersman_runtime::{Manager, send_reviews};
///
/// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::files("/certificates/tls.crt", "/certificates/tls.key")?;
/// let address = (Ipv4Addr::UNSPECIFIED, 8443).into();
/// let manager = Manager::builder()
///     .metrics(move |server| server.address(address).tls(tls).authorize(send_reviews(client)))
///     .build()
///     .await?;
/// # Ok(())
/// # }
/// ```
pub fn send_reviews(
    client: Client,
) -> impl Fn(http::Request<Vec<u8>>) -> BoxFuture<'static, Result<Value, kube::Error>> + Send + Sync + 'static
{
    move |request| {
        let client = client.clone();
        Box::pin(async move { client.request(request).await })
    }
}
