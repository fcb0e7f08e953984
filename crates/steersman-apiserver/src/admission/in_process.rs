// SPDX-License-Identifier: Apache-2.0
//! Admission hooks that are closures of the test.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::status::Failure;

/// A mutating closure.
pub(crate) type MutatingHook =
    Arc<dyn Fn(&AdmissionRequest, &mut Value) -> Result<(), AdmissionDenied> + Send + Sync>;
/// A validating closure.
pub(crate) type ValidatingHook = Arc<dyn Fn(&AdmissionRequest) -> Result<(), AdmissionDenied> + Send + Sync>;

/// A write that an in-process admission hook decides on: the `request` of an `AdmissionReview`.
#[derive(Clone, Debug)]
pub struct AdmissionRequest {
    request: Value,
}

impl AdmissionRequest {
    pub(crate) fn new(request: Value) -> Self {
        Self { request }
    }

    fn text(&self, pointer: &str) -> &str {
        let text = self.request.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default()
    }

    /// Returns the operation: `CREATE`, `UPDATE` or `DELETE`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.text("/operation")
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.text("/resource/group")
    }

    /// Returns the resource, such as `pods`.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.text("/resource/resource")
    }

    /// Returns the subresource, such as `status`; empty for the object itself.
    #[must_use]
    pub fn subresource(&self) -> &str {
        self.text("/subResource")
    }

    /// Returns the namespace; empty for cluster-scoped objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.text("/namespace")
    }

    /// Returns the name; empty in a mutating hook if the server generates the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("/name")
    }

    /// Returns the name of the user.
    #[must_use]
    pub fn user(&self) -> &str {
        self.text("/userInfo/username")
    }

    /// Returns the new object; `None` for deletions.
    #[must_use]
    pub fn object(&self) -> Option<&Value> {
        self.request.get("object").filter(|object| !object.is_null())
    }

    /// Returns the stored object; `None` for creates.
    #[must_use]
    pub fn old_object(&self) -> Option<&Value> {
        self.request.get("oldObject").filter(|object| !object.is_null())
    }

    /// Returns true if nothing will be stored.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.request.get("dryRun") == Some(&json!(true))
    }

    /// Returns the whole `request` of the `AdmissionReview`.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.request
    }
}

/// The denial of a write by an in-process admission hook.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdmissionDenied {
    code: u16,
    message: String,
}

impl AdmissionDenied {
    /// Denies the write with status code 403.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            code: 403,
            message: message.into(),
        }
    }

    /// Sets the status code. Codes below 400 become 400, as for webhooks.
    #[must_use]
    pub fn code(mut self, code: u16) -> Self {
        self.code = code;
        self
    }

    /// Returns the failure that clients see: that of a webhook with this name.
    pub(crate) fn failure(&self, hook: &str) -> Failure {
        let reason = if self.code == 403 { "Forbidden" } else { "" };
        let message = format!("admission webhook {hook:?} denied the request: {}", self.message);
        Failure::of_status(&json!({"code": self.code, "reason": reason}), message)
    }
}
