// SPDX-License-Identifier: Apache-2.0
//! Rules that an object has to satisfy before the API server stores it.

use std::fmt;

/// Checks an object. `steersman-webhook` serves it as a validating webhook.
///
/// Prefer rules of the CRD (CEL) where they suffice: the API server evaluates them also while the webhook is down.
///
/// ```
/// use steersman_kit::{Validate, ValidationReport};
///
/// struct Web { replicas: i32, storage: String }
///
/// impl Validate for Web {
///     fn validate(&self, old: Option<&Self>, report: &mut ValidationReport) {
///         if self.replicas < 1 {
///             report.invalid("spec.replicas", "must be at least 1");
///         }
///         if old.is_some_and(|old| old.storage != self.storage) {
///             report.forbidden("spec.storage", "cannot be changed");
///         }
///         if self.replicas > 100 {
///             report.warn("spec.replicas: more than 100 replicas share one cache");
///         }
///     }
/// }
///
/// let mut report = ValidationReport::new();
/// Web { replicas: 0, storage: "fast".to_owned() }.validate(None, &mut report);
/// assert_eq!(report.to_string(), "spec.replicas: Invalid value: must be at least 1");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no rules",
    label = "implement `Validate` for `{Self}`"
)]
pub trait Validate {
    /// Reports everything that is wrong with an object that is created, or that replaces `old`.
    fn validate(&self, old: Option<&Self>, report: &mut ValidationReport);

    /// Reports why the object cannot be deleted. Default: it can.
    fn validate_delete(&self, report: &mut ValidationReport) {
        let _ = report;
    }
}

/// Errors and warnings about one object. An object without errors is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidationReport {
    errors: Vec<FieldError>,
    warnings: Vec<String>,
}

/// An error about one field of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    kind: FieldErrorKind,
    field: String,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldErrorKind {
    Invalid,
    Required,
    Forbidden,
}

impl ValidationReport {
    /// Creates an empty report.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports that a field such as `spec.replicas` has an invalid value.
    pub fn invalid(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(FieldErrorKind::Invalid, field.into(), message.into());
    }

    /// Reports that a field has no value.
    pub fn required(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(FieldErrorKind::Required, field.into(), message.into());
    }

    /// Reports that a field must not have a value, or must not change.
    pub fn forbidden(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(FieldErrorKind::Forbidden, field.into(), message.into());
    }

    /// Adds a warning, which `kubectl` shows. It does not make the object invalid.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Returns true if there are no errors.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the errors, in the order in which they were reported.
    #[must_use]
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// Returns the warnings, in the order in which they were reported.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn add(&mut self, kind: FieldErrorKind, field: String, message: String) {
        self.errors.push(FieldError { kind, field, message });
    }
}

/// Shows the errors as the API server does: one, or a list in brackets.
impl fmt::Display for ValidationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<String> = self.errors.iter().map(FieldError::to_string).collect();
        match &*errors {
            [one] => f.write_str(one),
            all => write!(f, "[{}]", all.join(", ")),
        }
    }
}

impl FieldError {
    /// Returns the path of the field.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the text for people, such as `Invalid value: must be at least 1`.
    #[must_use]
    pub fn message(&self) -> String {
        let kind = match self.kind {
            FieldErrorKind::Invalid => "Invalid value",
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::Forbidden => "Forbidden",
        };
        match &*self.message {
            "" => kind.to_owned(),
            message => format!("{kind}: {message}"),
        }
    }

    /// Returns the reason that a `Status` names, such as `FieldValueInvalid`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.kind {
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_several_errors_as_the_api_server_does() {
        let mut report = ValidationReport::new();
        report.warn("careful");
        assert!(report.is_valid());
        report.required("spec.image", "");
        report.forbidden("spec.storage", "cannot be changed");
        assert_eq!(
            report.to_string(),
            "[spec.image: Required value, spec.storage: Forbidden: cannot be changed]"
        );
        assert!(!report.is_valid());
    }
}
