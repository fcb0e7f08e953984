// SPDX-License-Identifier: Apache-2.0
//! What a webhook answered, read as the real server's client reads it.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::Value;

use crate::json;

/// A response that has been read to its end.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Response {
    fn header(&self, name: header::HeaderName) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }

    /// Returns where the response redirects to.
    pub(super) fn redirect(&self) -> Option<&str> {
        let location = self.header(header::LOCATION);
        (matches!(self.code, 301 | 302 | 303 | 307 | 308) && !location.is_empty()).then_some(location)
    }
}

/// Returns the JSON of a successful response.
pub(super) fn decode(response: &Response) -> Result<Value, String> {
    if !(200..=206).contains(&response.code) {
        return Err(refusal(response));
    }
    if response.body.is_empty() {
        let kind = response.header(header::CONTENT_TYPE);
        return Err(format!(
            "0-length response with status code: {} and content type: {kind}",
            response.code
        ));
    }
    parse(&response.body)
}

/// Parses an object as the real server's decoder does.
fn parse(body: &[u8]) -> Result<Value, String> {
    // The decoder takes YAML, too, and so any text is at least a string.
    let parsed =
        json::parse(body, &mut Vec::new()).or_else(|error| json::parse_yaml(body).map_err(|_| error));
    let value = parsed.map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))?;
    if !value.is_object() {
        let found = crate::handler::decode::go_kind(&value);
        let wanted = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        return Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type {wanted}"
        ));
    }
    Ok(value)
}

/// Returns the error of a response that is no success.
fn refusal(response: &Response) -> String {
    let status: Option<Value> = serde_json::from_slice(&response.body).ok();
    if let Some(status) = status.filter(|status| status["kind"] == "Status" && status["status"] != "Success")
        && let Some(message) = status["message"].as_str()
    {
        return message.to_owned();
    }
    let is_text = response.header(header::CONTENT_TYPE).starts_with("text/");
    let text = String::from_utf8_lossy(&response.body);
    let shown = if is_text { text.trim() } else { "unknown" };
    let fixed = match response.code {
        409 => "the server reported a conflict",
        404 => "the server could not find the requested resource",
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => shown,
        406 if matches!(shown, "" | "unknown") => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => shown,
        405 => "the server does not allow this method on the requested resource",
        422 => "the server rejected our request due to an error in our request",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        429 => "the server has received too many requests and has asked us to try again later",
        code if code >= 500 => {
            return format!("an error on the server ({shown:?}) has prevented the request from succeeding");
        }
        code => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    fixed.to_owned()
}
