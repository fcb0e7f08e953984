// SPDX-License-Identifier: Apache-2.0
//! The time limit of a request: the parameter `timeout`, and the limits of the real server.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::Call;
use crate::{
    route::Verb,
    status::{Failure, Result},
};

/// Limit of every request that is not a stream.
const REQUEST: Duration = Duration::from_secs(60);
/// Limit of a write of one object, which webhooks share.
const WRITE: Duration = Duration::from_secs(34);

/// Subresources of the real server that are streams, as watches are. Streams have no limit.
const STREAMS: [&str; 5] = ["attach", "exec", "proxy", "log", "portforward"];

/// The time limit of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) duration: Duration,
    /// The limit is that of writes.
    is_of_writes: bool,
}

impl Limit {
    /// Returns the limit of a request; `None` for a stream.
    pub(crate) fn of(call: &Call) -> Option<Self> {
        if is_stream(call) {
            return None;
        }
        let given = call.query.filled("timeout");
        // A timeout of zero, or a longer one than the server's, has no effect.
        let given = given.and_then(|text| duration(text).ok());
        let given = given.filter(|given| !given.is_zero() && *given < REQUEST);
        let duration = given.unwrap_or(REQUEST);
        let verb = call.resource_request().map(|(verb, _)| verb);
        let is_write = matches!(
            verb,
            Some(Verb::Create | Verb::Update | Verb::Patch | Verb::Delete)
        );
        Some(Self {
            duration: if is_write { duration.min(WRITE) } else { duration },
            is_of_writes: is_write && duration >= WRITE,
        })
    }

    /// Returns the failure of a request that exceeds its limit. In the real server two layers answer: the handler of writes
    /// by a `Status`, and the layer below by a text that has no kind.
    pub(crate) fn failure(self) -> Failure {
        let message = if self.is_of_writes {
            "Timeout: request did not complete within requested timeout - context deadline exceeded"
        } else {
            "Timeout: request did not complete within the allotted timeout"
        };
        let failure = Failure::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).with_details();
        if self.is_of_writes {
            return failure;
        }
        let mut body = failure.body();
        if let Value::Object(fields) = &mut body {
            fields.retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind"));
        }
        Failure::plain(StatusCode::GATEWAY_TIMEOUT, &format!("{body}\n"))
    }
}

fn is_stream(call: &Call) -> bool {
    call.resource_request()
        .is_some_and(|(verb, path)| verb == Verb::Watch || STREAMS.contains(&path.subresource.as_str()))
}

/// Checks the `timeout` parameter.
///
/// # Errors
/// Returns 400 if the value is not a Go duration.
pub(crate) fn check(call: &Call) -> Result<()> {
    let Some(timeout) = call.query.filled("timeout") else {
        return Ok(());
    };
    match duration(timeout) {
        Err(error) if !is_stream(call) => Err(Failure::bad_request(format!(
            "invalid timeout specified in the request URL - time: {error} {timeout:?}"
        ))),
        _ => Ok(()),
    }
}

/// Parses a Go duration; negative ones are zero.
///
/// # Errors
/// Returns Go's error.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    const INVALID: &str = "invalid duration";
    /// The largest signed 64-bit integer.
    const LONGEST: f64 = 9_223_372_036_854_775_807.0;
    let number = |c: char| c == '.' || c.is_ascii_digit();
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(INVALID.to_owned());
    }
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let after = rest[digits..].strip_prefix('.').unwrap_or(&rest[digits..]);
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
        let Ok(value) = rest[..rest.len() - after.len()].parse::<f64>() else {
            return Err(INVALID.to_owned());
        };
        let unit = &after[..after.find(number).unwrap_or(after.len())];
        nanoseconds += value
            * match unit {
                "" => return Err("missing unit in duration".to_owned()),
                "ns" => 1.0,
                "us" | "µs" | "μs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 6e10,
                "h" => 3.6e12,
                _ => return Err(format!("unknown unit {unit:?} in duration")),
            };
        rest = &after[unit.len()..];
    }
    if nanoseconds > LONGEST {
        return Err(INVALID.to_owned());
    }
    let is_negative = text.starts_with('-');
    let seconds = if is_negative { 0.0 } else { nanoseconds / 1e9 };
    Duration::try_from_secs_f64(seconds).map_err(|_| INVALID.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_as_go_does() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("-0", 0),
            ("1.5s", 1_500_000_000),
            ("1m2s", 62_000_000_000),
            ("-.5ms", 0),
            ("3µs", 3000),
            ("+7ns", 7),
            ("5.s", 5_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for (text, error) in [
            ("abc", "invalid duration"),
            ("-", "invalid duration"),
            (".s", "invalid duration"),
            ("1e3s", "unknown unit \"e\" in duration"),
            ("9999999999h", "invalid duration"),
            ("5", "missing unit in duration"),
            ("5s3", "missing unit in duration"),
            ("5parsecs", "unknown unit \"parsecs\" in duration"),
        ] {
            assert_eq!(duration(text), Err(error.to_owned()), "{text}");
        }
    }
}
