// SPDX-License-Identifier: Apache-2.0
//! The response of an admission review.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use steersman_kit::ValidationReport;

/// The API server truncates longer warnings, and more than 4096 bytes of them in total.
const WARNING_BYTES_MAX: usize = 256;

/// Admits or denies a request.
///
/// ```
/// use steersman_webhook::AdmissionResponse;
///
/// let allowed = AdmissionResponse::allow().warning("spec.size is deprecated; use spec.replicas");
/// let denied = AdmissionResponse::deny("the namespace is locked").code(423);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "return it from the webhook"]
pub struct AdmissionResponse {
    pub(crate) denial: Option<Denial>,
    pub(crate) warnings: Vec<String>,
    pub(crate) audit_annotations: BTreeMap<String, String>,
    /// The changed object, as its type serialises it.
    pub(crate) changed: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Denial {
    pub(crate) message: String,
    pub(crate) code: u16,
    pub(crate) reason: String,
    pub(crate) details: Option<Value>,
}

impl AdmissionResponse {
    /// Admits the request.
    pub fn allow() -> Self {
        Self {
            denial: None,
            warnings: Vec::new(),
            audit_annotations: BTreeMap::new(),
            changed: None,
        }
    }

    /// Denies the request: the client gets status 403 `Forbidden` with this message.
    pub fn deny(message: impl Into<String>) -> Self {
        let denial = Denial {
            message: message.into(),
            code: 403,
            reason: "Forbidden".to_owned(),
            details: None,
        };
        Self {
            denial: Some(denial),
            ..Self::allow()
        }
    }

    /// Denies the request because the object is invalid, or admits it if `report` has no errors. Warnings are sent in both
    /// cases. `object` names the object in the message, such as `Web.example.com "front"`.
    pub fn validated(report: &ValidationReport, object: &str) -> Self {
        let mut response = Self::allow();
        if !report.is_valid() {
            let causes = report.errors().iter().map(
                |error| json!({"reason": error.reason(), "message": error.message(), "field": error.field()}),
            );
            response.denial = Some(Denial {
                message: format!("{object} is invalid: {report}"),
                code: 422,
                reason: "Invalid".to_owned(),
                details: Some(json!({"causes": causes.collect::<Vec<_>>()})),
            });
        }
        let warnings = report.warnings().iter().cloned();
        warnings.fold(response, Self::warning)
    }

    /// HTTP status of a denial. Default: 403. Ignored unless the request is denied.
    pub fn code(mut self, code: u16) -> Self {
        if let Some(denial) = &mut self.denial {
            denial.code = code;
        }
        self
    }

    /// Reason of a denial in CamelCase. Default: `Forbidden`. Ignored unless the request is denied.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        if let Some(denial) = &mut self.denial {
            denial.reason = reason.into();
        }
        self
    }

    /// Adds a warning, which `kubectl` shows. Longer ones are cut after 256 bytes, as the API server does.
    pub fn warning(mut self, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let end = (0..=text.len().min(WARNING_BYTES_MAX))
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        self.warnings.push(text);
        self
    }

    /// Adds an annotation to the audit event of the request. The API server prefixes the key with the name of the webhook.
    pub fn audit_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.audit_annotations.insert(key.into(), value.into());
        self
    }

    /// Changes the object of the request. Only the differences from the decoded object of the request are sent, so that
    /// fields which the type does not have survive. Ignored by validating webhooks.
    ///
    /// # Errors
    /// If the object cannot be serialised.
    pub fn with_object(mut self, object: &impl Serialize) -> Result<Self, serde_json::Error> {
        self.changed = Some(serde_json::to_value(object)?);
        Ok(self)
    }

    /// Denies a request with a malformed object.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::deny(message).code(400).reason("BadRequest")
    }
}
