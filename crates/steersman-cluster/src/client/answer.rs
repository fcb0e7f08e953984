// SPDX-License-Identifier: Apache-2.0
//! Reads and decodes the answers of a server.
//!
//! It does not use `kube::Client::request`, which logs text that it cannot decode; such text can contain a secret.

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use steersman_cache::without_content;

use crate::{
    Error, Operation,
    error::ApiError,
    transport::{Guarded, SendError},
};

/// Reads the whole body of a successful answer.
pub(super) async fn read(call: &Operation, response: Response<Guarded>) -> Result<Bytes, Error> {
    let response = accepted(call, response).await?;
    match response.into_body().collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(unanswered(call, error)),
    }
}

/// Returns the answer if its status is a success.
pub(super) async fn accepted(
    call: &Operation,
    response: Response<Guarded>,
) -> Result<Response<Guarded>, Error> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(Error::refused(call.clone(), ApiError::read(response).await))
}

/// Converts a missing or incomplete answer into an error.
pub(super) fn unanswered(call: &Operation, error: SendError) -> Error {
    let call = Box::new(call.clone());
    match error {
        SendError::Closed(source) => Error::Closed { call, source },
        SendError::TimedOut(source) => Error::TimedOut { call, source },
        SendError::Failed(source) => Error::Unreachable {
            call,
            source: Box::new(source),
        },
    }
}

/// Decodes an answer as a value.
pub(super) fn decode<T: DeserializeOwned>(call: &Operation, json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| undecodable::<T>(call, json, &error))
}

/// Reports the path of the field that cannot be decoded. Only failures are decoded a second time to track the path.
fn undecodable<T: DeserializeOwned>(call: &Operation, json: &[u8], error: &serde_json::Error) -> Error {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let (path, reason) = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Err(found) => (found.path().to_string(), without_content(found.inner())),
        Ok(_) => (".".to_owned(), without_content(error)),
    };
    Error::Decode {
        call: Box::new(call.clone()),
        type_name: std::any::type_name::<T>(),
        path,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use steersman_cache::Resource;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Sized {
        data: Size,
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Size {
        value: u8,
    }

    #[test]
    fn a_decode_error_names_the_field_and_omits_its_value() {
        let call = Operation::within("list", &Resource::new("", "v1", "Secret", "secrets"), "web");
        for (json, reason) in [
            (
                r#"{"data":{"value":"hunter2, expected"}}"#,
                "expected u8 at line 1 column 36",
            ),
            (r#"{"data":{"value":7123}}"#, "expected u8 at line 1 column 21"),
            (r#"{"data":{}}"#, "missing field `value` at line 1 column 10"),
            (
                r#"{"data":{"value":hunter2"#,
                "expected value at line 1 column 18",
            ),
        ] {
            let error = decode::<Sized>(&call, json.as_bytes()).unwrap_err();
            let Error::Decode { reason: found, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(found, reason);
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains("data") && !shown.contains("hunter2") && !shown.contains("7123"),
                "{shown}"
            );
        }
    }
}
