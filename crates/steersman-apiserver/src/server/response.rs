// SPDX-License-Identifier: Apache-2.0
//! HTTP responses: from the reply or failure of a handler.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::Inner;
use crate::{
    body::Body,
    compression,
    fault::Effect,
    handler::{self, Call, Content, Reply},
    status::Failure,
    warning,
};

impl Inner {
    /// Builds the response of a reply that waits for nothing.
    pub(super) fn finish(self: &Arc<Self>, call: &Call, effects: &[Effect], reply: Reply) -> Response<Body> {
        let takes_gzip = compression::is_accepted(&call.headers);
        let mut is_compressed = false;
        let mut once = |bytes: Bytes| {
            let compressed = if takes_gzip {
                compression::compress(&bytes)
            } else {
                None
            };
            is_compressed = compressed.is_some();
            Body::once(compressed.unwrap_or(bytes))
        };
        let body = match reply.content {
            Content::Bytes(bytes) => once(bytes),
            Content::List(list) => {
                let items = list.items.iter().map(|stored| &**stored);
                once(list.representation.list(&list.metadata, items))
            }
            Content::Watch(plan) => {
                is_compressed = takes_gzip && plan.begins_with_state();
                let control = self.lock().faults.hold(call, effects);
                let stream = handler::watch::stream(Arc::clone(self), *plan, control);
                if is_compressed {
                    let mut pieces = compression::Pieces::new();
                    Body::stream(stream.map_ok(move |bytes| pieces.next(&bytes)))
                } else {
                    Body::stream(stream)
                }
            }
            Content::Wait(_) => Body::once(Bytes::new()),
        };
        let slow = effects.iter().find_map(|effect| match effect {
            Effect::SlowBody { bytes, pause } => Some((*bytes, *pause)),
            _ => None,
        });
        let body = match slow {
            Some((bytes, pause)) => body.slowed(Arc::clone(&self.clock), bytes, pause),
            None => body,
        };
        let mut response = respond(reply.code, body);
        if is_compressed {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        if reply.code == StatusCode::NO_CONTENT {
            response.headers_mut().remove(header::CONTENT_TYPE);
        }
        for (name, value) in reply.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        warned(response, &reply.warnings)
    }
}

/// Adds warnings to a response.
pub(super) fn warned(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for value in warning::headers(warnings) {
        response.headers_mut().append(header::WARNING, value);
    }
    response
}

fn respond(code: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

/// Builds the response of a failure.
pub(crate) fn failed(failure: &Failure) -> Response<Body> {
    if failure.is_plain() {
        let mut response = respond(
            failure.code,
            Body::once(Bytes::from(failure.message().to_owned())),
        );
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        return response;
    }
    let mut response = respond(failure.code, Body::once(Bytes::from(failure.body().to_string())));
    if let Some(seconds) = failure.retry_after_seconds() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Builds the response of a watch that fails before its first event.
pub(super) fn stream_of_failure(failure: &Failure) -> Response<Body> {
    let line = json!({"type": "ERROR", "object": failure.body()});
    respond(StatusCode::OK, Body::once(Bytes::from(format!("{line}\n"))))
}

/// Returns the failure that an injected fault names by its status code.
pub(super) fn fault_failure(code: u16) -> Failure {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        StatusCode::SERVICE_UNAVAILABLE => {
            Failure::unavailable("the server is currently unable to handle the request")
        }
        StatusCode::GATEWAY_TIMEOUT => Failure::new(
            code,
            "Timeout",
            "Timeout: request did not complete within the allotted timeout",
        ),
        StatusCode::INTERNAL_SERVER_ERROR => Failure::internal("an injected fault"),
        _ => Failure::new(code, "", "an injected fault"),
    }
}
