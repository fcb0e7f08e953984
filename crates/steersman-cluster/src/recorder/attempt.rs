// SPDX-License-Identifier: Apache-2.0
//! One attempt to write an event.

use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

use crate::{
    ApiError,
    transport::{SendError, Transport},
};

/// Result of one attempt.
pub(super) enum Attempt {
    Done,
    /// The event object or its namespace does not exist.
    Gone(ApiError),
    Refused(ApiError),
    HeldBack,
    /// Retry.
    Again,
}

pub(super) async fn write_once(transport: &Transport, method: &Method, path: &str, body: &Value) -> Attempt {
    let form = match *method {
        Method::POST => "application/json",
        _ => "application/merge-patch+json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, form)
        .header(header::ACCEPT, "application/json")
        .body(Body::from(body.to_string().into_bytes()))
        .expect("an encoded path makes a request");
    let response = match transport.send(request).await {
        Ok(response) => response,
        Err(SendError::Closed(closed)) => {
            tracing::debug!(%closed, "a fence rejected the event");
            return Attempt::HeldBack;
        }
        Err(error) => {
            tracing::debug!(%error, "failed to send event");
            return Attempt::Again;
        }
    };
    match response.status() {
        // An event with this name is the same event: the answer to an earlier attempt was lost.
        code if code.is_success() || code == StatusCode::CONFLICT => {
            // Reads the body so that the connection can be reused.
            let _ = response.into_body().collect().await;
            Attempt::Done
        }
        code if code.is_server_error() || code == StatusCode::TOO_MANY_REQUESTS => {
            let _ = response.into_body().collect().await;
            Attempt::Again
        }
        StatusCode::NOT_FOUND => Attempt::Gone(ApiError::read(response).await),
        _ => Attempt::Refused(ApiError::read(response).await),
    }
}
