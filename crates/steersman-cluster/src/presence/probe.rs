// SPDX-License-Identifier: Apache-2.0
//! Waits until a server is ready for those who watch a kind that it says is established.
//!
//! A server that shows a definition as established may not serve the kind yet (404), or may still fill the memory from
//! which it answers watches. Watches are then refused for a second (429), however soon it would be ready, so that an
//! informer that starts at once is that second late. Asking for a watch from the beginning of time finds out about both: a
//! server that is ready says at once that it does not remember so much.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::{client::Body, core::Status};
use steersman_cache::Resource;
use steersman_core::Clock;
use tokio::sync::Semaphore;

/// How long to wait until the server is asked again: at least, and at most where it has not been ready for long.
const AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// How long the memory of a kind is waited for. It is never filled where objects cannot be converted, which those who list
/// are told in clearer words.
const FILLING_AT_MOST: Duration = Duration::from_secs(2);

/// How long an answer is waited for. Who does not answer at all is no better asked by those who list.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// So many are asked for at the same time, so that a start among a thousand kinds does not open a thousand connections.
pub(super) const AT_ONCE: usize = 16;

/// How much of a refusal is read.
const REFUSAL_MAX: usize = 1 << 12;

/// What a server says whose memory of a kind is being filled.
const FILLING: &str = "storage is (re)initializing";

/// What a server says of a kind.
enum Answer {
    /// There is no such kind.
    Unknown,
    /// Its memory of the kind is being filled.
    Filling,
    /// Anything else, which those who list will hear in their own words.
    Ready,
}

/// Returns when the server has answered for the kind, whatever it said but that it is not ready. One that waits to ask again is
/// in nobody's way: only questions are limited by `turns`.
pub(super) async fn probe(client: &kube::Client, clock: &dyn Clock, resource: &Resource, turns: &Semaphore) {
    let mut began = None;
    loop {
        let turn = turns.acquire().await;
        let asked = clock.now();
        let began = *began.get_or_insert(asked);
        let answer = tokio::select! {
            biased;
            answer = ask(client, resource) => answer,
            () = clock.sleep_until(asked + ANSWER_WITHIN) => Answer::Ready,
        };
        drop(turn);
        let now = clock.now();
        let waited = now.saturating_since(began);
        match answer {
            Answer::Ready => return,
            Answer::Filling if waited >= FILLING_AT_MOST => return,
            Answer::Filling | Answer::Unknown => {}
        }
        // So it is noticed late by a part of the time that it took.
        let [least, most] = AGAIN;
        clock.sleep_until(now + (waited / 4).clamp(least, most)).await;
    }
}

async fn ask(client: &kube::Client, resource: &Resource) -> Answer {
    let path = format!(
        "/apis/{}/{}/{}?watch=true&resourceVersion=1&timeoutSeconds=1",
        resource.group(),
        resource.version(),
        resource.plural()
    );
    let Ok(request) = Request::get(&path).body(Body::empty()) else {
        return Answer::Ready;
    };
    match client.send(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => Answer::Unknown,
        Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
            match is_filling(response).await {
                true => Answer::Filling,
                // Any other reason to wait is for those who list, too.
                false => Answer::Ready,
            }
        }
        Ok(_) | Err(_) => Answer::Ready,
    }
}

async fn is_filling(response: Response<Body>) -> bool {
    let body = Limited::new(response.into_body(), REFUSAL_MAX).collect().await;
    let status = body.ok().map(|body| serde_json::from_slice(&body.to_bytes()));
    matches!(status, Some(Ok(Status { message, .. })) if message.contains(FILLING))
}
