// SPDX-License-Identifier: Apache-2.0
//! Waits until a server is ready to serve watches of an established kind.
//!
//! A server that reports a CRD as established might not serve the kind yet (404), or might still initialize its watch
//! cache. It then rejects watches with a delay of one second (429), even if it is ready sooner, so that an informer
//! that starts at once is one second late. A watch from resource version 1 detects both: a server that is ready answers
//! at once that the version is too old.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::{client::Body, core::Status};
use steersman_cache::Resource;
use steersman_core::Clock;
use tokio::sync::Semaphore;

/// Minimum and maximum delay between probes. The delay grows while the server is not ready.
const AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Maximum time to wait for the watch cache of a kind. It is never initialized if objects cannot be converted; a list
/// reports that with a clearer error.
const FILLING_AT_MOST: Duration = Duration::from_secs(2);

/// Timeout of one probe. If the server does not answer at all, the informer reports it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Number of concurrent probes, so that a start with a thousand kinds does not open a thousand connections.
pub(super) const AT_ONCE: usize = 16;

/// Maximum number of bytes that are read of a rejection.
const REFUSAL_MAX: usize = 1 << 12;

/// The server's message while it initializes the watch cache of a kind.
const FILLING: &str = "storage is (re)initializing";

/// ProbeAnswer to a probe.
enum ProbeAnswer {
    /// The server does not serve the kind.
    Unknown,
    /// The watch cache of the kind is being initialized.
    Filling,
    /// Any other answer; the informer's list handles it.
    Ready,
}

/// Returns when the server has answered for the kind with anything except that it is not ready. `turns` limits only
/// requests: a probe that waits to retry holds no turn.
pub(super) async fn probe(client: &kube::Client, clock: &dyn Clock, resource: &Resource, turns: &Semaphore) {
    let mut began = None;
    loop {
        let turn = turns.acquire().await;
        let asked = clock.now();
        let began = *began.get_or_insert(asked);
        let answer = clock
            .timeout_at(asked + ANSWER_WITHIN, ask(client, resource))
            .await;
        drop(turn);
        let now = clock.now();
        let waited = now.saturating_since(began);
        match answer.unwrap_or(ProbeAnswer::Ready) {
            ProbeAnswer::Ready => return,
            ProbeAnswer::Filling if waited >= FILLING_AT_MOST => return,
            ProbeAnswer::Filling | ProbeAnswer::Unknown => {}
        }
        // The delay is a fraction of the elapsed time, so that the detection is late by at most that fraction.
        let [least, most] = AGAIN;
        clock.sleep_until(now + (waited / 4).clamp(least, most)).await;
    }
}

async fn ask(client: &kube::Client, resource: &Resource) -> ProbeAnswer {
    let path = format!(
        "/apis/{}/{}/{}?watch=true&resourceVersion=1&timeoutSeconds=1",
        resource.group(),
        resource.version(),
        resource.plural()
    );
    let Ok(request) = Request::get(&path).body(Body::empty()) else {
        return ProbeAnswer::Ready;
    };
    match client.send(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => ProbeAnswer::Unknown,
        Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
            match is_filling(response).await {
                true => ProbeAnswer::Filling,
                // Any other rejection with a delay also applies to lists.
                false => ProbeAnswer::Ready,
            }
        }
        Ok(_) | Err(_) => ProbeAnswer::Ready,
    }
}

async fn is_filling(response: Response<Body>) -> bool {
    let body = Limited::new(response.into_body(), REFUSAL_MAX).collect().await;
    let status = body.ok().map(|body| serde_json::from_slice(&body.to_bytes()));
    matches!(status, Some(Ok(Status { message, .. })) if message.contains(FILLING))
}
