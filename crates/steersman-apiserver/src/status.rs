// SPDX-License-Identifier: Apache-2.0
//! Failures, serialized as `Status` bodies.

use std::borrow::Cow;

use http::StatusCode;
use serde_json::{Map, Value, json};

/// A group and resource, in the form of error messages: `deployments.apps`, `pods`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qualified<'a> {
    pub(crate) group: &'a str,
    pub(crate) name: &'a str,
}

impl std::fmt::Display for Qualified<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.group.is_empty() {
            f.write_str(self.name)
        } else {
            write!(f, "{}.{}", self.name, self.group)
        }
    }
}

/// The failure of a request.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: StatusCode,
    reason: Cow<'static, str>,
    message: String,
    details: Option<Map<String, Value>>,
    /// `metadata.continue` of an expired list.
    continue_token: Option<String>,
    /// True if the response is plain text instead of a `Status`.
    plain: bool,
}

/// The result of handling a request.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            message: message.into(),
            details: None,
            continue_token: None,
            plain: false,
        }
    }

    fn about(mut self, of: Qualified<'_>, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        for (key, value) in [("name", name), ("group", of.group), ("kind", of.name)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), Value::from(value));
            }
        }
        self
    }

    fn detail(mut self, key: &str, value: Value) -> Self {
        self.details.get_or_insert_default().insert(key.to_owned(), value);
        self
    }

    /// Returns the failure of an unknown path: the plain text of Go's file server instead of a `Status`.
    pub(crate) fn unknown_path() -> Self {
        Self::plain(StatusCode::NOT_FOUND, "404 page not found\n")
    }

    /// Returns the failure of a handler that stops until an admission task is done. No client sees it.
    pub(crate) fn suspended() -> Self {
        Self::internal("the request waits for admission")
    }

    /// Returns the failure that a webhook describes by a `Status`, with another message.
    pub(crate) fn of_status(status: &Value, message: String) -> Self {
        let code = status.get("code").and_then(Value::as_u64);
        let code = code.and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok());
        let reason = status.get("reason").and_then(Value::as_str).unwrap_or_default();
        Self {
            reason: Cow::Owned(reason.to_owned()),
            details: status.get("details").and_then(Value::as_object).cloned(),
            ..Self::new(
                code.filter(|code| code.as_u16() >= 400)
                    .unwrap_or(StatusCode::BAD_REQUEST),
                "",
                message,
            )
        }
    }

    /// Creates a failure that is sent as plain text.
    pub(crate) fn plain(code: StatusCode, text: &str) -> Self {
        Self {
            plain: true,
            ..Self::new(code, "", text)
        }
    }

    pub(crate) fn unknown_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self {
            details: Some(Map::new()),
            ..Self::new(StatusCode::NOT_FOUND, "NotFound", message)
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(of: Qualified<'_>, name: &str, why: &str) -> Self {
        let message = match (of.name.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{of} is forbidden: {why}"),
            (false, false) => format!("{of} {name:?} is forbidden: {why}"),
        };
        let failure = Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(of, name);
        Self {
            details: Some(failure.details.clone().unwrap_or_default()),
            ..failure
        }
    }

    /// Returns the rejection of an admission policy; its status code follows from the reason.
    pub(crate) fn denied_by_policy(of: Qualified<'_>, name: &str, why: &str, reason: &str) -> Self {
        let (code, reason) = match reason {
            "Forbidden" => (StatusCode::FORBIDDEN, "Forbidden"),
            "Unauthorized" => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            "RequestEntityTooLarge" => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
        };
        let forbidden = Self::forbidden(of, name, why).detail("causes", json!([{"message": why}]));
        Self {
            code,
            reason: Cow::Borrowed(reason),
            ..forbidden
        }
    }

    pub(crate) fn not_found(of: Qualified<'_>, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{of} {name:?} not found"),
        )
        .about(of, name)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self {
            details: Some(Map::new()),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
        }
    }

    pub(crate) fn not_acceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub(crate) fn already_exists(of: Qualified<'_>, name: &str, being_deleted: bool) -> Self {
        let prefix = if being_deleted {
            "object is being deleted: "
        } else {
            ""
        };
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{prefix}{of} {name:?} already exists"),
        )
        .about(of, name)
    }

    pub(crate) fn name_exhausted(of: Qualified<'_>, name: &str) -> Self {
        let message = format!(
            "{of} {name:?} already exists, the server was not able to generate a unique name for the object"
        );
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message)
            .about(of, name)
            .retry_after(1)
    }

    pub(crate) fn conflict(of: Qualified<'_>, name: &str, why: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {of} {name:?}: {why}"),
        )
        .about(of, name)
    }

    /// The object was modified after the client read it.
    pub(crate) fn modified(of: Qualified<'_>, name: &str) -> Self {
        Self::conflict(
            of,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message).detail("causes", Value::Array(causes))
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// An expired list that can continue at the latest revision.
    pub(crate) fn expired_continue(message: impl Into<String>, token: String) -> Self {
        Self {
            continue_token: Some(token),
            ..Self::expired(message)
        }
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    /// Creates a validation failure; `of` names the kind instead of the resource.
    pub(crate) fn invalid(of: Qualified<'_>, name: &str, errors: &[FieldError]) -> Self {
        // The message names equal errors once, the causes each of them.
        let mut texts: Vec<String> = Vec::new();
        for text in errors.iter().map(ToString::to_string) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let list = match &*texts {
            [] => "<nil>".to_owned(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes = errors.iter().map(FieldError::cause).collect();
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{of} {name:?} is invalid: {list}"),
        )
        .about(of, name)
        .detail("causes", Value::Array(causes))
    }

    /// A patch that does not apply to its object.
    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).with_details()
    }

    /// Returns the failure with empty details, which some responses of the real server have.
    pub(crate) fn with_details(mut self) -> Self {
        self.details.get_or_insert_default();
        self
    }

    /// An invalid field of an object that has neither kind nor name.
    pub(crate) fn invalid_of_nothing(error: &FieldError) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!(" \"\" is invalid: {error}"),
        )
        .detail("causes", json!([error.cause()]))
    }

    pub(crate) fn too_many_requests(message: impl Into<String>, seconds: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).retry_after(seconds)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .detail("causes", json!([{"message": message}]))
    }

    /// An internal error without a reason.
    pub(crate) fn unclassified(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// A revision that this server has not reached.
    pub(crate) fn revision_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
            .detail(
                "causes",
                json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]),
            )
            .retry_after(1)
    }

    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        self.detail("retryAfterSeconds", Value::from(seconds))
    }

    pub(crate) fn with_cause(self, reason: &str, message: &str, field: &str) -> Self {
        self.detail(
            "causes",
            json!([{"reason": reason, "message": message, "field": field}]),
        )
    }

    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the `Status` object.
    pub(crate) fn body(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".to_owned(), Value::from(token.clone()));
        }
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            body["reason"] = Value::from(self.reason.as_ref());
        }
        if let Some(details) = &self.details {
            body["details"] = Value::Object(details.clone());
        }
        body
    }
}

/// The error of one field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    pub(crate) reason: &'static str,
    pub(crate) field: String,
    message: String,
}

impl FieldError {
    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self {
            reason: "FieldValueRequired",
            field: field.into(),
            message,
        }
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::invalid_text(field, &printed(value), detail)
    }

    /// Creates an error as [`Self::invalid`] does, with a value that is printed verbatim.
    pub(crate) fn invalid_text(field: impl Into<String>, value: &str, detail: &str) -> Self {
        let message = if detail.is_empty() {
            format!("Invalid value: {value}")
        } else {
            format!("Invalid value: {value}: {detail}")
        };
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            message,
        }
    }

    pub(crate) fn type_invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self {
            reason: "FieldValueTypeInvalid",
            field: field.into(),
            message: format!("Invalid value: {value}: {detail}"),
        }
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: &Value, supported: &[String]) -> Self {
        let list = supported
            .iter()
            .map(|value| format!("{value:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let message = format!("Unsupported value: {}: supported values: {list}", printed(value));
        Self {
            reason: "FieldValueNotSupported",
            field: field.into(),
            message,
        }
    }

    /// Creates an error as [`Self::unsupported`] does, with a value that is printed verbatim.
    pub(crate) fn unsupported_text(field: impl Into<String>, value: &str, supported: &[String]) -> Self {
        let mut error = Self::unsupported(field, &Value::Null, supported);
        error.message = error.message.replacen("null", value, 1);
        error
    }

    pub(crate) fn not_found(field: impl Into<String>, value: &str) -> Self {
        Self {
            reason: "FieldValueNotFound",
            field: field.into(),
            message: format!("Not found: {value:?}"),
        }
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self {
            reason: "FieldValueForbidden",
            field: field.into(),
            message: format!("Forbidden: {detail}"),
        }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self {
            reason: "FieldValueDuplicate",
            field: field.into(),
            message: format!("Duplicate value: {value}"),
        }
    }

    pub(crate) fn too_long(field: impl Into<String>, max: u64) -> Self {
        Self {
            reason: "FieldValueTooLong",
            field: field.into(),
            message: format!("Too long: may not be more than {max} bytes"),
        }
    }

    pub(crate) fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let message = format!("Too many: {actual}: must have at most {max} items");
        Self {
            reason: "FieldValueTooMany",
            field: field.into(),
            message,
        }
    }

    /// Removes a prefix of the field's path from the message.
    pub(crate) fn worded(mut self, prefix: &str) -> Self {
        self.message = self.message.replace(&format!(": {prefix}"), ": ");
        self
    }

    /// Returns true if an object with this error cannot be checked by other rules.
    pub(crate) fn is_blocking(&self) -> bool {
        matches!(
            self.reason,
            "FieldValueRequired"
                | "FieldValueTypeInvalid"
                | "FieldValueNotSupported"
                | "FieldValueTooLong"
                | "FieldValueTooMany"
        )
    }

    /// An `Invalid` error with only a message.
    pub(crate) fn invalid_bare(field: impl Into<String>, message: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            message: format!("Invalid value: {message}"),
        }
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Formats a value as Go prints it in field errors.
fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}
